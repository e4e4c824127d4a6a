//! A drawing, as text.

use std::fmt::Write as _;

pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text is held.
#[derive(Debug, Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Style<'a> {
    pub(super) size: f64,
    pub(super) colour: &'a str,
    pub(super) bold: bool,
    pub(super) anchor: Anchor,
    /// In degrees, around the anchor.
    pub(super) turned: f64,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        let mut svg = Self {
            width,
            height,
            body: String::new(),
        };
        svg.rectangle((0.0, 0.0), (width, height), "#ffffff");
        svg
    }

    pub(super) fn rectangle(&mut self, from: (f64, f64), size: (f64, f64), fill: &str) {
        self.element(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
            from.0, from.1, size.0, size.1
        ));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        self.element(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let mut list = String::new();
        for (x, y) in points {
            write!(list, "{x:.1},{y:.1} ").expect("a string takes it");
        }
        self.element(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"/>",
            list.trim_end()
        ));
    }

    pub(super) fn dot(&mut self, at: (f64, f64), radius: f64, colour: &str) {
        self.element(format_args!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{colour}\"/>",
            at.0, at.1
        ));
    }

    pub(super) fn text(&mut self, at: (f64, f64), text: &str, style: Style<'_>) {
        let (x, y) = at;
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if style.bold {
            " font-weight=\"bold\""
        } else {
            ""
        };
        let turn = if style.turned == 0.0 {
            String::new()
        } else {
            format!(" transform=\"rotate({} {x:.1} {y:.1})\"", style.turned)
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.element(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\" fill=\"{}\" \
             text-anchor=\"{anchor}\"{weight}{turn}>{text}</text>",
            style.size, style.colour
        ));
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.body, "{element}").expect("a string takes it");
    }

    pub(super) fn finish(self) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" \
             font-family=\"system-ui, 'DejaVu Sans', Verdana, sans-serif\">\n{body}</svg>\n"
        )
    }
}
