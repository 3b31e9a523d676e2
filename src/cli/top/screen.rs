//! Draws `dq top`, in 80 columns and 24 lines or more.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::super::daemon_snapshot::Node;
use super::super::show::{NOTHING, cut, plain, short_span, span};
use super::super::status::word;
use super::board::{self, Board, Sort};
use model::status::{DaemonStatus, ProcessState};

/// The maximum number of lines that show problems.
const ALERTS: usize = 3;

/// In a window with this number of lines or fewer, the table of processes has at most eight lines. The table of nodes
/// also has at most eight lines.
const LOW: u16 = 30;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, board: &mut Board, now_ms: i64) {
    let area = frame.area();
    let alerts = alerts(board, now_ms, area.width as usize);
    let status = board.snapshot.as_ref().map(|snapshot| &snapshot.status);
    let nodes: Vec<&Node> = board.snapshot.iter().flat_map(|p| p.nodes.iter().flatten()).collect();
    let nodes: Vec<&Node> = nodes.into_iter().filter(|node| node.name != "embedded").collect();
    let fits = |rows: usize| -> u16 {
        let most = if area.height <= LOW { 8 } else { area.height / 3 };
        if rows == 0 { 0 } else { (rows as u16 + 2).min(most) }
    };
    let processes = status.map_or(0, |status| status.processes.len());
    let [head, wrong, topics, below, nodes_at, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(alerts.len() as u16),
        Constraint::Min(5),
        Constraint::Length(fits(processes)),
        Constraint::Length(fits(nodes.len())),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Line::styled(title(board, now_ms), Style::new().add_modifier(Modifier::BOLD)), head);
    frame.render_widget(Paragraph::new(alerts), wrong);
    if let Some(status) = board.snapshot.as_ref().map(|snapshot| &snapshot.status) {
        draw_processes(frame, board, status, below, now_ms);
    }
    draw_nodes(frame, &nodes, nodes_at);
    draw_topics(frame, board, topics);
    let keys = "q quit   sort: n name d delayed r ready l leased x dead a adds o done t late";
    frame.render_widget(Line::styled(keys, dim()), foot);
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn colour(colour: Color) -> Style {
    // If NO_COLOR is set, the text is bold instead.
    let asked = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    if asked { Style::new().fg(colour) } else { Style::new().add_modifier(Modifier::BOLD) }
}

fn title(board: &Board, now_ms: i64) -> String {
    let Some(snapshot) = &board.snapshot else { return board.address.clone() };
    let DaemonStatus { version, instance, generation, phase, started_ms, .. } = &snapshot.status;
    let up = span(now_ms - started_ms);
    format!("dq {version} on {instance}, up {up}, generation {generation}, {}", word(phase))
}

fn alerts(board: &Board, now_ms: i64, columns: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(trouble) = &board.trouble {
        lines.push(Line::styled(cut(trouble, columns), colour(Color::Red)));
    }
    let findings = board.snapshot.iter().flat_map(|snapshot| &snapshot.status.findings);
    for finding in findings {
        let since = span(now_ms - finding.since_ms);
        let text = format!("{}, for {since}: {}", finding.what, finding.detail);
        let style = colour(if finding.loses_jobs { Color::Red } else { Color::Yellow });
        lines.push(Line::styled(cut(&text, columns), style));
    }
    if lines.len() > ALERTS {
        let more = lines.len() - ALERTS + 1;
        lines.truncate(ALERTS - 1);
        lines.push(Line::styled(format!("and {more} more: dq status"), colour(Color::Yellow)));
    }
    lines
}

/// Returns a cell with right-aligned text.
fn right(text: String) -> Cell<'static> {
    Cell::new(Text::from(text).alignment(Alignment::Right))
}

fn head(words: impl IntoIterator<Item = (String, bool)>) -> Row<'static> {
    let cell = |(word, is_number)| if is_number { right(word) } else { Cell::new(word) };
    Row::new(words.into_iter().map(cell)).style(dim())
}

fn draw_topics(frame: &mut Frame<'_>, board: &mut Board, area: Rect) {
    let room = area.height.saturating_sub(1) as usize;
    // The list scrolls only until the last topic is visible.
    board.above = board.above.min(board.rows.len().saturating_sub(room));

    let number = |n: Option<f64>| n.map_or(NOTHING.to_owned(), |n| format!("{n:.1}"));
    let row = |row: &board::TopicRow| {
        let board::TopicRow { topic, delayed, ready, leased, dead, adds, done, late_ms } = row;
        let late = late_ms.map_or(NOTHING.to_owned(), short_span);
        let counts = [delayed, ready, leased].map(|n| right(n.to_string()));
        let style = if *dead > 0 { colour(Color::Yellow) } else { Style::new() };
        let rest =
            [right(dead.to_string()).style(style), right(number(*adds)), right(number(*done)), right(late)];
        Row::new([Cell::new(plain(topic))].into_iter().chain(counts).chain(rest))
    };
    let words = Sort::ALL.map(|(_, sort, word)| {
        let mark = if sort == board.sort { "*" } else { "" };
        (format!("{word}{mark}"), sort != Sort::Name)
    });
    let widths = [
        Constraint::Min(14),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(10),
    ];
    let rows: Vec<Row<'_>> = board.rows.iter().skip(board.above).take(room).map(row).collect();
    let is_empty = rows.is_empty();
    frame.render_widget(Table::new(rows, widths).header(head(words)), area);
    if is_empty && room > 0 {
        let inside = Rect { y: area.y + 1, height: 1, ..area };
        frame.render_widget(Line::styled("no topics are known", dim()), inside);
    }
}

fn draw_processes(frame: &mut Frame<'_>, board: &Board, status: &DaemonStatus, area: Rect, now_ms: i64) {
    let dash = || NOTHING.to_owned();
    let rows = status.processes.iter().map(|p| {
        let is_good = p.state == ProcessState::Up && p.overdue_ms == 0;
        let state = if p.overdue_ms > 0 { format!("{}, stuck", word(&p.state)) } else { word(&p.state) };
        let cpu = board.cpu.get(&(p.name.clone(), p.generation.to_string()));
        let row = Row::new([
            Cell::new(p.name.clone()),
            right(p.pid.map_or_else(dash, |pid| pid.to_string())),
            right(p.generation.to_string()),
            Cell::new(format!(" {state}")),
            right(p.started_ms.map_or_else(dash, |since| span(now_ms - since))),
            right(p.restarts.to_string()),
            right(p.memory_bytes.map_or_else(dash, |b| format!("{:.1} MiB", b as f64 / 1048576.0))),
            right(cpu.map_or_else(dash, |part| format!("{:.0} %", part * 100.0))),
        ]);
        if is_good { row } else { row.style(colour(Color::Yellow)) }
    });
    let words = ["PROCESS", "PID", "GEN", " STATE", "UP", "RESTARTS", "MEMORY", "CPU"];
    let words = words.map(|word| (word.to_owned(), !matches!(word, "PROCESS" | " STATE")));
    let widths = [16, 8, 4, 15, 9, 8, 10, 5].map(Constraint::Length);
    let under = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    frame.render_widget(Table::new(rows, widths).header(head(words)), under);
}

fn draw_nodes(frame: &mut Frame<'_>, nodes: &[&Node], area: Rect) {
    let rows = nodes.iter().map(|node| {
        let counts = [node.delayed, node.ready, node.leased, node.dead].map(|n| right(n.to_string()));
        let why = plain(node.detail.as_deref().unwrap_or_default());
        let cells = [Cell::new(plain(&node.name)), Cell::new(plain(node.state()))].into_iter().chain(counts);
        let row = Row::new(cells.chain([Cell::new(format!(" {why}"))]));
        if node.answers { row } else { row.style(colour(Color::Red)) }
    });
    let words = ["NODE", "STATE", "DELAYED", "READY", "LEASED", "DEAD", " WHY"];
    let words = words.map(|word| (word.to_owned(), !matches!(word, "NODE" | "STATE" | " WHY")));
    let widths = [14, 9, 9, 8, 7, 7].map(Constraint::Length).into_iter().chain([Constraint::Min(10)]);
    let under = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    frame.render_widget(Table::new(rows, widths).header(head(words)), under);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::tests::snapshot;
    use super::*;
    use model::status::Finding;

    fn lines(board: &mut Board, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, board, 65_000)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..rows).map(line).collect()
    }

    fn finding(what: &str) -> Finding {
        let detail =
            "what would help, at some length that does not fit into the line of a small window".into();
        Finding {
            name: "x".into(),
            what: what.into(),
            node: None,
            topic: None,
            process: None,
            loses_jobs: true,
            detail,
            since_ms: 5_000,
        }
    }

    #[test]
    fn all_of_it_is_seen_in_80_columns_and_24_lines() {
        let topics: Vec<(String, u64, u64)> =
            (0..30).map(|n| (format!("订单-{n:02}"), 1_234_567, 100 - n)).collect();
        let topics: Vec<(&str, u64, u64)> = topics.iter().map(|(t, d, r)| (t.as_str(), *d, *r)).collect();
        let mut board = Board::new("/run/dq/http.sock".into());
        let mut shown = snapshot(&topics, "", 0);
        shown.status.findings = ["one", "two", "three", "four"].map(finding).into();
        shown.nodes =
            Some(vec![Node { name: "r1".into(), detail: Some("refused".into()), ..Node::default() }]);
        board.take(Ok(shown), Instant::now());
        let seen = lines(&mut board, 80, 24);
        let text = seen.join("\n");
        for part in [
            "dq 1.2.3 on host-a, up 1m 5s, generation 3, steady",
            "one, for 1m: what would help",
            "and 2 more: dq status",
            "DELAYED   READY*",
            "1234567",
            "dq-server",
            "3.0 MiB",
            "o done t late",
            " refused",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let first = |lines: &[String]| lines.iter().position(|l| l.contains("TOPIC")).unwrap() + 1;
        assert!(seen[first(&seen)].contains("00"), "{text}");
        board.scroll(3);
        let seen = lines(&mut board, 80, 24);
        assert!(seen[first(&seen)].contains("03"), "{}", seen.join("\n"));
        // The list scrolls to the end and no further.
        board.scroll(100);
        let text = lines(&mut board, 80, 24).join("\n");
        assert!(text.contains("-29") && text.contains("-20"), "{text}");
        // A window that is too small does no harm.
        lines(&mut board, 10, 3);
        lines(&mut board, 300, 100);
    }

    #[test]
    fn trouble_is_told_beside_what_was_known() {
        let mut board = Board::new("door".into());
        assert!(lines(&mut board, 80, 24)[0].starts_with("door"));
        board.take(Ok(snapshot(&[("t", 0, 1)], "", 0)), Instant::now());
        board.take(Err(anyhow::anyhow!("no dq-master answers")), Instant::now());
        let text = lines(&mut board, 80, 24).join("\n");
        assert!(text.contains("no dq-master answers") && text.contains("dq-server"), "{text}");
    }
}
