//! A white area in pixels, on which shapes and text are drawn.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::element::DashedPathElement;
use plotters::prelude::{
    Circle, DrawingArea, IntoDrawingArea, PathElement, Polygon, RGBColor, Rectangle, SVGBackend, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontFamily, FontStyle, ShapeStyle, TextStyle};

use crate::colours::{INK, WHITE};

/// A plot could not be drawn. Opaque, because callers can only omit the plot.
#[derive(Debug, thiserror::Error)]
#[error("no plot: {0}")]
pub struct PlotError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

/// The result of drawing.
pub type Result<T> = std::result::Result<T, PlotError>;

/// A colour: red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    fn rgb(self) -> RGBColor {
        RGBColor(self.0, self.1, self.2)
    }
}

/// Which part of a text is at its position, from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Its left end.
    Left,
    /// Its middle.
    Middle,
    /// Its right end.
    Right,
}

/// Which part of a text is at its position, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Its upper edge.
    Top,
    /// Its middle.
    Middle,
    /// Its lower edge.
    Bottom,
}

/// A point in pixels, from the upper left corner.
type Point = (i32, i32);

/// A white area in pixels.
pub struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

impl std::fmt::Debug for Canvas<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canvas").finish_non_exhaustive()
    }
}

impl Canvas<'_> {
    /// A filled rectangle between two corners.
    pub fn rectangle(&self, from: Point, to: Point, colour: Colour) -> Result<()> {
        Ok(self.area.draw(&Rectangle::new([from, to], colour.rgb().filled()))?)
    }

    /// The outline of a rectangle.
    pub fn outline(&self, from: Point, to: Point, colour: Colour) -> Result<()> {
        Ok(self.area.draw(&Rectangle::new([from, to], ShapeStyle::from(&colour.rgb()).stroke_width(1)))?)
    }

    /// A filled polygon.
    pub fn polygon(&self, points: Vec<Point>, colour: Colour) -> Result<()> {
        Ok(self.area.draw(&Polygon::new(points, colour.rgb().filled()))?)
    }

    /// A line through points.
    pub fn line(&self, points: Vec<Point>, colour: Colour, width: u32) -> Result<()> {
        Ok(self.area.draw(&PathElement::new(points, ShapeStyle::from(&colour.rgb()).stroke_width(width)))?)
    }

    /// A dashed line through points, with dashes and gaps of these lengths.
    pub fn dashed(
        &self,
        points: Vec<Point>,
        (dash, gap): (u32, u32),
        colour: Colour,
        width: u32,
    ) -> Result<()> {
        let style = ShapeStyle::from(&colour.rgb()).stroke_width(width);
        Ok(self.area.draw(&DashedPathElement::new(points, dash, gap, style))?)
    }

    /// A filled circle.
    pub fn dot(&self, at: Point, radius: i32, colour: Colour) -> Result<()> {
        Ok(self.area.draw(&Circle::new(at, radius, colour.rgb().filled()))?)
    }

    /// A line of text.
    pub fn text(
        &self,
        text: &str,
        at: Point,
        size: i32,
        colour: Colour,
        anchor: (Across, Down),
    ) -> Result<()> {
        let colour = colour.rgb();
        let style = TextStyle::from(("sans-serif", size)).color(&colour).pos(position(anchor));
        Ok(self.area.draw(&Text::new(text.to_owned(), at, style))?)
    }

    /// A line of bold text from its upper left corner.
    pub fn bold(&self, text: &str, at: Point, size: i32) -> Result<()> {
        let colour = INK.rgb();
        let style = TextStyle::from((FontFamily::SansSerif, size, FontStyle::Bold)).color(&colour);
        Ok(self.area.draw(&Text::new(text.to_owned(), at, style))?)
    }
}

fn position((across, down): (Across, Down)) -> Pos {
    let across = match across {
        Across::Left => HPos::Left,
        Across::Middle => HPos::Center,
        Across::Right => HPos::Right,
    };
    let down = match down {
        Down::Top => VPos::Top,
        Down::Middle => VPos::Center,
        Down::Bottom => VPos::Bottom,
    };
    Pos::new(across, down)
}

/// Draws a picture of this size on white, and returns it as SVG.
///
/// # Errors
/// If `draw` fails.
pub fn paint((width, height): (i32, i32), draw: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
        let canvas = Canvas { area };
        canvas.rectangle((0, 0), (width, height), WHITE)?;
        draw(&canvas)?;
        canvas.area.present()?;
    }
    Ok(svg)
}
