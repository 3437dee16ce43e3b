//! The names of settings in messages.
//!
//! A message names its remedy as its reader would write it: an option of the command, an argument
//! in Python, a method in Rust. One process has one interface, so it is set once for the process
//! and not passed to every error. The price is a global variable, which only names depend on.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// How the user of this process writes settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Interface {
    /// In Rust: `look_ahead`. This is the default.
    Library,
    /// On the command line: `--look-ahead`.
    Command,
    /// In Python: `look_ahead=`.
    Python,
}

static CURRENT: AtomicU8 = AtomicU8::new(Interface::Library as u8);

impl Interface {
    /// Makes this the interface of the process.
    pub fn set(self) {
        CURRENT.store(self as u8, Ordering::Relaxed);
    }

    /// The interface of the process.
    #[must_use]
    pub fn current() -> Self {
        match CURRENT.load(Ordering::Relaxed) {
            1 => Self::Command,
            2 => Self::Python,
            _ => Self::Library,
        }
    }
}

/// A setting as the user writes it, such as `--look-ahead` or `--format files`.
#[derive(Clone, Copy, Debug)]
pub struct SettingName<'a> {
    name: &'a str,
    value: Option<&'a str>,
    interface: Interface,
}

impl<'a> SettingName<'a> {
    /// The same with this value.
    #[must_use]
    pub fn to(self, value: &'a str) -> Self {
        Self { value: Some(value), ..self }
    }
}

/// The name of a setting, such as `look-ahead`, for a message.
#[must_use]
pub fn setting(name: &str) -> SettingName<'_> {
    SettingName { name, value: None, interface: Interface::current() }
}

impl fmt::Display for SettingName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.replace('-', "_");
        match (self.interface, self.value) {
            (Interface::Command, None) => write!(f, "--{}", self.name),
            (Interface::Command, Some(value)) if value.is_empty() || value.contains(['*', ' ']) => {
                write!(f, "--{} '{value}'", self.name)
            }
            (Interface::Command, Some(value)) => write!(f, "--{} {value}", self.name),
            (Interface::Library, None) => write!(f, "`{name}`"),
            (Interface::Python, None) => write!(f, "{name}="),
            // Numbers and names in capitals, which stand for a value, are no texts.
            (_, Some(value)) => {
                let is_text =
                    value.is_empty() || !value.chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase());
                match (self.interface, is_text) {
                    (Interface::Python, true) => write!(f, "{name}='{value}'"),
                    (Interface::Python, false) => write!(f, "{name}={value}"),
                    (_, true) => write!(f, "`{name}` \"{value}\""),
                    (_, false) => write!(f, "`{name}` {value}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_is_named_as_the_interface_writes_it() {
        let named = |interface, name, value| SettingName { name, value, interface }.to_string();
        let [command, python, rust] = [Interface::Command, Interface::Python, Interface::Library];
        assert_eq!(named(command, "look-ahead", None), "--look-ahead");
        assert_eq!(named(python, "look-ahead", None), "look_ahead=");
        assert_eq!(named(rust, "look-ahead", None), "`look_ahead`");
        assert_eq!(named(command, "peers", Some("off")), "--peers off");
        assert_eq!(named(python, "peers", Some("off")), "peers='off'");
        assert_eq!(named(rust, "peers", Some("off")), "`peers` \"off\"");
        assert_eq!(named(command, "include", Some("**/*.tar")), "--include '**/*.tar'");
        assert_eq!(named(python, "include", Some("**/*.tar")), "include='**/*.tar'");
        assert_eq!(named(python, "pack", Some("2048")), "pack=2048");
        assert_eq!(named(python, "field", Some("NAME")), "field=NAME");
        assert_eq!(named(command, "key", Some("")), "--key ''");
    }
}
