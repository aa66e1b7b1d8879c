//! The figures as a page: a table and a picture. Contains numbers and fixed words only.

use crate::report::{HitPoint, RuleFigures, ShadowPhase, ShadowReport};
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const STYLE: &str = "body{font:15px system-ui;margin:2em auto;max-width:46em;padding:0 1em}\
    table{border-collapse:collapse;width:100%}td,th{padding:.3em .6em;text-align:right;\
    border-bottom:1px solid #8884}td:first-child,th:first-child{text-align:left}\
    svg{width:100%;height:auto;margin-top:1em}text{font:12px system-ui;fill:#888}\
    .a{color:#888;stroke:#888}.b{color:#c80;stroke:#c80}.c{color:#08a;stroke:#08a}\
    polyline{fill:none;stroke-width:2}.b{stroke-dasharray:5 4}";

/// The page. Reloads itself every ten seconds.
pub(crate) fn page(report: &ShadowReport) -> String {
    let figures = &report.figures;
    let rows = ["a", "b", "c"].into_iter().zip(figures.rows());
    let rows: String = rows.map(|(class, (name, figures))| row(class, &name, figures)).collect();
    let saved = figures.gpu_s_saved_a_day.map_or_else(String::new, |seconds| {
        format!("<p>GPU seconds of prefill saved a day: <b>{seconds:.0}</b></p>")
    });
    let mirrored = &report.mirrored;
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta http-equiv=\"refresh\" content=\"10\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>forebay shadow</title><style>{STYLE}</style>\
         <h1>What <code>kv</code> would have given</h1><p>{}</p>\
         <table><tr><th><th>hits<th>first token<th>p90<th>requests<th>refused</tr>{rows}</table>\
         {saved}{}<p>{} mirrored requests: {} prompts, {} others, {} lost, {} left out. \
         {} engines, {} silent, {} ranks.</p></html>",
        state(report),
        picture(&report.points),
        mirrored.received,
        mirrored.prompts,
        mirrored.other,
        mirrored.lost,
        mirrored.left_out,
        report.fleet.engines,
        report.fleet.silent,
        report.fleet.ranks,
    )
}

fn state(report: &ShadowReport) -> String {
    let percent = (report.progress * 100.0).floor();
    let bar = format!("<br><progress max=\"100\" value=\"{percent}\"></progress> {percent} %");
    match (report.phase, report.fault) {
        (ShadowPhase::Calibrating, Some(fault)) => format!("Calibrating: {fault}.{bar}"),
        (ShadowPhase::Calibrating, None) => {
            format!("Calibrating by the engines' counters.{bar}")
        }
        (ShadowPhase::WarmingUp, _) => format!("Warming up: the simulated caches fill.{bar}"),
        (ShadowPhase::Counting, _) => format!("Counting for {:.0} min.", report.seconds / 60.0),
    }
}

fn row(class: &str, name: &str, figures: &RuleFigures) -> String {
    let percent = shown(figures.hit_rate.map(|rate| format!("{:.1} %", rate * 100.0)));
    let ms = |value: Option<f64>| shown(value.map(|ms| format!("{ms:.0} ms")));
    let refused = shown(figures.refused.map(|count| count.to_string()));
    format!(
        "<tr><td class=\"{class}\">{name}<td>{percent}<td>{}<td>{}<td>{}<td>{refused}</tr>",
        ms(figures.ttft_ms_mean),
        ms(figures.ttft_ms_p90),
        figures.requests,
    )
}

fn shown(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

/// Hits over time: the engines, the control and `kv`.
pub(crate) fn picture(points: &[HitPoint]) -> String {
    let end_s = points.last().map_or(1.0, |point| point.at_s.max(1.0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-40 -10 {} {}\" role=\"img\" \
         aria-label=\"Hits over time\">",
        WIDTH + 50.0,
        HEIGHT + 40.0
    );
    for percent in [0, 25, 50, 75, 100] {
        let y = HEIGHT * (1.0 - f64::from(percent) / 100.0);
        let _infallible = write!(
            svg,
            "<path d=\"M0 {y:.0}H{WIDTH}\" stroke=\"#8884\"/>\
             <text x=\"-36\" y=\"{:.0}\">{percent} %</text>",
            y + 4.0
        );
    }
    for (line, class) in ["a", "b", "c"].into_iter().enumerate() {
        let _infallible = write!(svg, "<polyline class=\"{class}\" points=\"");
        for point in points {
            let shares = [point.present, point.control, point.kv];
            if let Some(share) = shares.get(line).copied().flatten() {
                let x = point.at_s / end_s * WIDTH;
                let y = HEIGHT * (1.0 - share.clamp(0.0, 1.0));
                let _infallible = write!(svg, "{x:.1},{y:.1} ");
            }
        }
        svg.push_str("\"/>");
    }
    let minutes = end_s / 60.0;
    let _infallible = write!(
        svg,
        "<text x=\"0\" y=\"{0}\">0</text>\
         <text x=\"{WIDTH}\" y=\"{0}\" text-anchor=\"end\">{minutes:.1} min</text></svg>",
        HEIGHT + 20.0
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_before_the_figures_count_have_their_progress() {
        for (phase, is_shown) in [
            (ShadowPhase::Calibrating, true),
            (ShadowPhase::WarmingUp, true),
            (ShadowPhase::Counting, false),
        ] {
            let report = ShadowReport { phase, progress: 0.257, ..ShadowReport::default() };
            assert_eq!(page(&report).contains("value=\"25\""), is_shown, "{phase:?}");
        }
    }

    #[test]
    fn a_line_for_each_fleet_and_a_row_for_each_figure() {
        let point = |at_s, kv| HitPoint { at_s, present: Some(0.25), control: None, kv: Some(kv) };
        let mut report = ShadowReport {
            phase: ShadowPhase::Counting,
            points: vec![point(10.0, 0.5), point(20.0, 1.0)],
            ..ShadowReport::default()
        };
        report.figures.kv.hit_rate = Some(0.75);
        let page = page(&report);
        assert!(page.contains("points=\"360.0,120.0 720.0,0.0 \""), "{page}");
        assert!(page.contains("points=\"360.0,180.0 720.0,180.0 \""), "{page}");
        assert!(page.contains("points=\"\""), "no control yet: {page}");
        assert!(page.contains("75.0 %"), "{page}");
    }
}
