//! The terminal: in raw mode while a guard lives, restored after that.

use crate::app::{App, TopKey};
use crate::draw::symbols;
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, read};
use crossterm::{cursor, execute, queue, style, terminal};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use std::io::{self, Write};

/// Owns the terminal; restores it when dropped.
#[derive(Debug)]
pub struct TerminalGuard<W: Write> {
    out: W,
}

impl<W: Write> TerminalGuard<W> {
    /// Takes over the terminal behind `out`.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn new(out: W) -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let mut guard = Self { out };
        execute!(guard.out, terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(guard)
    }

    /// Draws a frame line by line, since clearing the screen would flicker.
    ///
    /// # Errors
    /// The terminal was closed.
    pub fn draw(&mut self, app: &App) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        app.draw(area, &mut buffer);
        for y in 0..height {
            queue!(self.out, cursor::MoveTo(0, y), style::ResetColor)?;
            queue!(self.out, style::SetAttribute(style::Attribute::Reset))?;
            self.draw_line(&buffer, y)?;
        }
        self.out.flush()
    }

    /// Draws a line, which has a single style.
    fn draw_line(&mut self, buffer: &Buffer, y: u16) -> io::Result<()> {
        let Some(first) = buffer.cell((0, y)) else { return Ok(()) };
        match first.fg {
            Color::Red => queue!(self.out, style::SetForegroundColor(style::Color::Red))?,
            Color::Yellow => queue!(self.out, style::SetForegroundColor(style::Color::Yellow))?,
            _ => {}
        }
        for (modifier, attribute) in [
            (Modifier::BOLD, style::Attribute::Bold),
            (Modifier::UNDERLINED, style::Attribute::Underlined),
        ] {
            if first.modifier.contains(modifier) {
                queue!(self.out, style::SetAttribute(attribute))?;
            }
        }
        queue!(self.out, style::Print(symbols(buffer, y)))?;
        queue!(self.out, terminal::Clear(terminal::ClearType::UntilNewLine))
    }
}

impl<W: Write> Drop for TerminalGuard<W> {
    fn drop(&mut self) {
        // If the terminal was closed, an error cannot be shown.
        let _ = execute!(self.out, cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Waits for keys and passes them to `take`, until it returns false or the terminal is closed.
/// `None`: the terminal was resized.
pub fn keys(mut take: impl FnMut(Option<TopKey>) -> bool) {
    while let Ok(event) = read() {
        let goes_on = match event {
            Event::Resize(..) => take(None),
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                known(key.code, key.modifiers).is_none_or(|key| take(Some(key)))
            }
            _ => true,
        };
        if !goes_on {
            return;
        }
    }
}

fn known(code: KeyCode, with: KeyModifiers) -> Option<TopKey> {
    Some(match code {
        KeyCode::Char('c') if with.contains(KeyModifiers::CONTROL) => TopKey::Interrupt,
        KeyCode::Char(char) => TopKey::Char(char),
        KeyCode::Up => TopKey::Up,
        KeyCode::Down => TopKey::Down,
        KeyCode::Left => TopKey::Left,
        KeyCode::Right => TopKey::Right,
        KeyCode::PageUp => TopKey::PageUp,
        KeyCode::PageDown => TopKey::PageDown,
        KeyCode::Home => TopKey::Home,
        KeyCode::End => TopKey::End,
        KeyCode::Enter => TopKey::Enter,
        KeyCode::Esc => TopKey::Escape,
        KeyCode::Backspace => TopKey::Backspace,
        _ => return None,
    })
}
