//! Two kinds of plot: bars in groups, and lines over a number.

use super::svg::{Anchor, Style, Svg};
use crate::outcome::{Summary, grouped, short};

/// At least; many groups need more.
const WIDTH: f64 = 960.0;
const GROUP: f64 = 92.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 76.0;

const INK: &str = "#222222";
const FAINT: &str = "#666666";
const GRID: &str = "#e3e3e3";

/// A scale reaches over more than so many times its least value: then it is logarithmic.
const WIDE: f64 = 15.0;

/// One candidate's values, a group or a place each.
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) colour: &'static str,
    pub(super) values: Vec<Option<Summary>>,
}

pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) subtitle: &'a str,
    /// With its unit.
    pub(super) y_label: &'a str,
    pub(super) series: Vec<Series>,
}

/// From values to places on the paper.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// Over these values, from zero or logarithmic.
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|&value| value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if high == 0.0 {
            (low, high) = (0.0, 1.0);
        }
        let logarithmic = high / low > WIDE;
        Self {
            low: if logarithmic { low / 1.6 } else { 0.0 },
            high: if logarithmic { high * 1.5 } else { high * 1.1 },
            logarithmic,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        };
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    /// Round numbers within.
    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let steps: &[f64] = if (self.high / self.low).log10() < 2.5 {
                &[1.0, 2.0, 5.0]
            } else {
                &[1.0]
            };
            return decades
                .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)))
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect();
        }
        let rough = self.high / 6.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
        let step = step
            .into_iter()
            .find(|&step| step >= rough)
            .unwrap_or(rough);
        (0..)
            .map(|count| f64::from(count) * step)
            .take_while(|&tick| tick <= self.high)
            .collect()
    }
}

fn style(size: f64, colour: &str, anchor: Anchor) -> Style<'_> {
    Style {
        size,
        colour,
        bold: false,
        anchor,
        turned: 0.0,
    }
}

fn tick_label(value: f64) -> String {
    if value.fract() == 0.0 {
        grouped(value as usize)
    } else {
        // (Sums of steps have digits far behind the point.)
        format!("{}", (value * 1e6).round() / 1e6)
    }
}

impl Plot<'_> {
    /// Frame, titles, vertical scale, legend.
    fn begin(&self, width: f64) -> (Svg, Scale) {
        let mut svg = Svg::new(width, HEIGHT);
        let bold = Style {
            bold: true,
            ..style(17.0, INK, Anchor::Start)
        };
        svg.text((24.0, 28.0), self.title, bold);
        let all = || {
            self.series
                .iter()
                .flat_map(|series| series.values.iter().flatten())
        };
        let ends = all().flat_map(|summary| [summary.least, summary.most]);
        let scale = Scale::over(ends, HEIGHT - BOTTOM, TOP);
        let kind = if scale.logarithmic {
            "logarithmic scale"
        } else {
            ""
        };
        let subtitle: Vec<&str> = [self.subtitle, kind]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        let small = style(12.5, FAINT, Anchor::Start);
        svg.text((24.0, 47.0), &subtitle.join("; "), small);
        for tick in scale.ticks() {
            let y = scale.place(tick);
            svg.line((LEFT, y), (width - RIGHT, y), GRID, 1.0);
            let label = style(12.5, INK, Anchor::End);
            svg.text((LEFT - 8.0, y + 4.5), &tick_label(tick), label);
        }
        let turned = Style {
            turned: -90.0,
            ..style(13.5, INK, Anchor::Middle)
        };
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        svg.text((22.0, middle), self.y_label, turned);
        for (number, series) in self.series.iter().enumerate() {
            let y = TOP + 10.0 + 23.0 * number as f64;
            let x = width - RIGHT + 22.0;
            svg.rectangle((x, y - 10.0), (13.0, 13.0), series.colour);
            svg.text(
                (x + 20.0, y + 1.5),
                series.name,
                style(13.5, INK, Anchor::Start),
            );
        }
        (svg, scale)
    }

    fn finish(mut svg: Svg, width: f64) -> String {
        let y = HEIGHT - BOTTOM;
        svg.line((LEFT, TOP), (LEFT, y), INK, 1.2);
        svg.line((LEFT, y), (width - RIGHT, y), INK, 1.2);
        svg.finish()
    }

    /// A bar for each series in each group, with a whisker from the least to the most.
    pub(super) fn bars(&self, groups: &[String]) -> String {
        let width = WIDTH.max(LEFT + RIGHT + GROUP * groups.len() as f64);
        let (mut svg, scale) = self.begin(width);
        let base = HEIGHT - BOTTOM;
        let group_width = (width - LEFT - RIGHT) / groups.len() as f64;
        let slots = self.series.len() as f64;
        let bar = (group_width * 0.86 / slots).min(64.0);
        for (number, group) in groups.iter().enumerate() {
            let centre = LEFT + group_width * (number as f64 + 0.5);
            for (index, series) in self.series.iter().enumerate() {
                let Some(summary) = series.values[number] else {
                    continue;
                };
                let x = centre + (index as f64 - slots / 2.0) * bar;
                let top = scale.place(summary.median);
                let gap = (bar * 0.08).min(2.0);
                svg.rectangle((x + gap, top), (bar - 2.0 * gap, base - top), series.colour);
                let middle = x + bar / 2.0;
                let ends = [scale.place(summary.least), scale.place(summary.most)];
                svg.line((middle, ends[0]), (middle, ends[1]), INK, 1.2);
                // What has room is written out.
                if bar >= 34.0 {
                    let at = (middle, ends[1].min(top) - 5.0);
                    svg.text(at, &short(summary.median), style(11.5, INK, Anchor::Middle));
                }
            }
            for (row, line) in wrap(group, group_width).iter().enumerate() {
                let at = (centre, base + 20.0 + 16.0 * row as f64);
                svg.text(at, line, style(12.5, INK, Anchor::Middle));
            }
        }
        Self::finish(svg, width)
    }

    /// A line for each series over `places`.
    pub(super) fn lines(&self, places: &[f64], x_label: &str) -> String {
        let (mut svg, scale) = self.begin(WIDTH);
        let mut across = Scale::over(places.iter().copied(), LEFT, WIDTH - RIGHT);
        if across.logarithmic {
            across.low *= 1.2;
        }
        let base = HEIGHT - BOTTOM;
        for &place in places {
            let x = across.place(place);
            svg.line((x, TOP), (x, base), GRID, 1.0);
            let label = style(12.5, INK, Anchor::Middle);
            svg.text((x, base + 20.0), &tick_label(place), label);
        }
        let at = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 22.0);
        let kind = if across.logarithmic {
            ", logarithmic scale"
        } else {
            ""
        };
        let label = style(13.5, INK, Anchor::Middle);
        svg.text(at, &format!("{x_label}{kind}"), label);
        for series in &self.series {
            let points: Vec<(f64, f64)> = places
                .iter()
                .zip(&series.values)
                .filter_map(|(&place, value)| {
                    let value = value.as_ref()?;
                    let x = across.place(place);
                    let ends = [value.least, value.most].map(|end| scale.place(end));
                    svg.line((x, ends[0]), (x, ends[1]), series.colour, 1.2);
                    Some((x, scale.place(value.median)))
                })
                .collect();
            svg.path(&points, series.colour, 2.2);
            points
                .iter()
                .for_each(|&point| svg.dot(point, 4.0, series.colour));
        }
        Self::finish(svg, WIDTH)
    }
}

/// Lines of a group's label, broken at its spaces to about the width.
fn wrap(text: &str, width: f64) -> Vec<String> {
    const PER_LETTER: f64 = 7.2;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if (line.len() + 1 + word.len()) as f64 * PER_LETTER < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
