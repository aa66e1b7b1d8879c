//! Charts of `forebay simulate`, as SVG.

use forebay_simulate::{PolicyRun, TtftPoint};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::fs;
use std::path::Path;

const SIZE: (u32, u32) = (960, 540);
const LINE_WIDTH: u32 = 2;
/// Share of the width for the names, right of the curves.
const NAMES_PART: f64 = 0.16;
/// A palette safe for color-blind readers (Okabe and Ito).
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(0, 0, 0),
];

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A curve with the name of its policy.
type Curve<'a> = (&'a str, Vec<(f64, f64)>);

type Picture = fn(&Area<'_>, &[(String, PolicyRun)]) -> Drawn;

/// Labels of a chart.
struct Axes {
    caption: &'static str,
    x: &'static str,
    y: &'static str,
}

/// Writes `ttft.svg`, `hits.svg` and `load.svg` into a folder, which is created.
///
/// # Errors
/// The error with the path.
pub(super) fn draw(runs: &[(String, PolicyRun)], folder: &Path) -> Result<(), String> {
    let fault = |path: &Path, error: &dyn Error| format!("--plot {}: {error}", path.display());
    fs::create_dir_all(folder).map_err(|error| fault(folder, &error))?;
    let pictures: [(&str, Picture); 3] =
        [("ttft.svg", ttft), ("hits.svg", hits), ("load.svg", load)];
    for (name, picture) in pictures {
        let path = folder.join(name);
        let area = SVGBackend::new(&path, SIZE).into_drawing_area();
        let drawn = picture(&area, runs).and_then(|()| Ok(area.present()?));
        drawn.map_err(|error| fault(&path, &*error))?;
    }
    Ok(())
}

fn ttft(area: &Area<'_>, runs: &[(String, PolicyRun)]) -> Drawn {
    area.fill(&WHITE)?;
    let [above, below] = &area.split_evenly((2, 1))[..] else { return Ok(()) };
    let curves = |of: fn(&TtftPoint) -> f64| -> Vec<Curve<'_>> {
        let points = |run: &PolicyRun| run.series.ttft.iter().map(|at| (at.at_s, of(at))).collect();
        runs.iter().map(|(name, run)| (name.as_str(), points(run))).collect()
    };
    let axes = |caption| Axes { caption, x: "s", y: "ms" };
    lines(above, &curves(|at| at.p50_ms), &axes("Time to the first token, p50"))?;
    lines(below, &curves(|at| at.p90_ms), &axes("Time to the first token, p90"))
}

fn hits(area: &Area<'_>, runs: &[(String, PolicyRun)]) -> Drawn {
    area.fill(&WHITE)?;
    let curves: Vec<Curve<'_>> =
        runs.iter().map(|(name, run)| (name.as_str(), run.series.hits.clone())).collect();
    let axes = Axes { caption: "Prompt tokens found in caches", x: "s", y: "share" };
    lines(area, &curves, &axes)
}

/// A bar per rank and policy: prompt tokens computed by the rank, relative to the mean.
fn load(area: &Area<'_>, runs: &[(String, PolicyRun)]) -> Drawn {
    area.fill(&WHITE)?;
    let ranks = runs.iter().map(|(_, run)| run.series.computed_tokens.len()).max().unwrap_or(1);
    let shares: Vec<(&str, Vec<f64>)> = runs
        .iter()
        .map(|(name, run)| (name.as_str(), over_mean(&run.series.computed_tokens)))
        .collect();
    let most = shares.iter().flat_map(|(_, shares)| shares).fold(1.0_f64, |a, b| a.max(*b));
    let mut chart = ChartBuilder::on(area)
        .caption("Prompt tokens computed by each rank, over the mean", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..ranks as f64 * (1.0 + NAMES_PART), 0.0..most * 1.1)?;
    let number = |at: &f64| format!("{at:.0}");
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(TRANSPARENT).x_label_formatter(&number);
    mesh.x_desc("rank").y_desc("share").draw()?;
    let width = 0.8 / runs.len().max(1) as f64;
    for (place, (name, shares)) in shares.iter().enumerate() {
        let color = color(place).filled();
        let bar = |(rank, share): (usize, &f64)| {
            let from = rank as f64 + 0.1 + width * place as f64;
            Rectangle::new([(from, 0.0), (from + width, *share)], color)
        };
        chart
            .draw_series(shares.iter().enumerate().map(bar))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color));
    }
    let names = SeriesLabelPosition::UpperRight;
    chart.configure_series_labels().position(names).background_style(WHITE).draw()?;
    Ok(())
}

fn color(place: usize) -> RGBColor {
    COLORS.get(place % COLORS.len()).copied().unwrap_or(BLACK)
}

fn over_mean(tokens: &[u64]) -> Vec<f64> {
    let mean = tokens.iter().sum::<u64>() as f64 / tokens.len().max(1) as f64;
    tokens.iter().map(|&tokens| tokens as f64 / mean.max(1.0)).collect()
}

fn lines(area: &Area<'_>, curves: &[Curve<'_>], axes: &Axes) -> Drawn {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(1e-9_f64, f64::max);
    let end = most(|point| point.0) * (1.0 + NAMES_PART);
    let mut chart = ChartBuilder::on(area)
        .caption(axes.caption, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..most(|point| point.1) * 1.05)?;
    let number = |at: &f64| format!("{at:.0}");
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(TRANSPARENT).x_label_formatter(&number);
    mesh.x_desc(axes.x).y_desc(axes.y).draw()?;
    for (place, (name, points)) in curves.iter().enumerate() {
        let style = color(place).stroke_width(LINE_WIDTH);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
    }
    let names = SeriesLabelPosition::UpperRight;
    chart.configure_series_labels().position(names).background_style(WHITE).draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_simulate::{Onlooker, Rule, Scenario, SimPlan, run};

    #[test]
    fn pictures_name_each_policy_and_need_no_runs() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("pictures");
        let trace = "chats".parse::<Scenario>().unwrap().trace(1);
        let plan = SimPlan { ranks: 3, ..SimPlan::default() };
        let run = |name: &str| {
            let onlooker = Onlooker { ended: &mut |_| (), clock: &|| 0 };
            (name.to_owned(), run(&trace, &plan, name.parse::<Rule>().unwrap(), onlooker))
        };
        draw(&[run("kv"), run("round_robin")], &folder).unwrap();
        for picture in ["ttft.svg", "hits.svg", "load.svg"] {
            let text = fs::read_to_string(folder.join(picture)).unwrap();
            assert!(text.starts_with("<svg") && text.contains("round_robin"), "{picture}");
            assert!(text.len() > 4_000, "{picture} is empty");
        }
        let bars = fs::read_to_string(folder.join("load.svg")).unwrap().matches("<rect").count();
        assert!(bars >= 6, "{bars} bars of two policies and three ranks");
        draw(&[], &folder).unwrap();
        let file = folder.join("ttft.svg");
        assert!(draw(&[], &file).unwrap_err().contains("--plot"), "a file is no folder");
    }
}
