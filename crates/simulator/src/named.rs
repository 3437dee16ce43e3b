//! Enums whose variants have names: in scenarios, on the command line, and in reports.

/// Declares such an enum: all of its variants, their names, and the functions of both.
macro_rules! named {
    (
        $(#[$about:meta])*
        pub enum $kind:ident is a $what:literal { $($(#[$doc:meta])* $variant:ident $name:literal,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind {
            $($(#[$doc])* $variant,)*
        }

        impl $kind {
            /// All of them, in the order of reports.
            pub const ALL: [Self; [$($name,)*].len()] = [$(Self::$variant,)*];

            /// The name in scenarios, on the command line and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl std::str::FromStr for $kind {
            type Err = crate::SimulateError;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.into_iter().find(|known| known.name() == name);
                let known = || Self::ALL.map(Self::name).join(" ");
                found.ok_or_else(|| crate::SimulateError::unknown($what, name, known()))
            }
        }
    };
}
pub(crate) use named;
