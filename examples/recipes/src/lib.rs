#![doc = include_str!("../../../docs/guide/recipes.md")]
