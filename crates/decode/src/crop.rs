//! The region of an image that is used, and whether it is flipped.
//!
//! Random regions are those of torchvision's `RandomResizedCrop.get_params`: area and logarithm of
//! the aspect ratio are uniform, with ten attempts and then a central region. (Szegedy et al.,
//! "Going deeper with convolutions", 2014, section 6.)

use crate::draw::Draw;

/// Attempts to draw a region that fits.
const ATTEMPTS: usize = 10;

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The first row.
    pub top: u32,
    /// The first column.
    pub left: u32,
    /// The number of rows.
    pub height: u32,
    /// The number of columns.
    pub width: u32,
}

/// The augmentation of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Augmentation {
    /// The region that is resized to the output.
    pub region: Region,
    /// Whether the result is mirrored, left to right.
    pub flipped: bool,
}

impl Region {
    pub(crate) fn whole(width: u32, height: u32) -> Self {
        Self { top: 0, left: 0, height, width }
    }
}

/// A random region and flip for an image of this size, as `RandomResizedCrop(scale, ratio)` and
/// `RandomHorizontalFlip(flip)`.
pub(crate) fn random(
    (width, height): (u32, u32),
    scale: (f64, f64),
    ratio: (f64, f64),
    flip: f64,
    draw: Draw,
) -> Augmentation {
    let mut random = draw.random();
    let area = f64::from(width) * f64::from(height);
    let logarithms = (libm::log(ratio.0), libm::log(ratio.1));
    let mut region = None;
    for _ in 0..ATTEMPTS {
        let target = area * random.uniform(scale.0, scale.1);
        let aspect = libm::exp(random.uniform(logarithms.0, logarithms.1));
        let wide = (target * aspect).sqrt().round_ties_even() as u32;
        let high = (target / aspect).sqrt().round_ties_even() as u32;
        if (1..=width).contains(&wide) && (1..=height).contains(&high) {
            let top = random.below(u64::from(height - high) + 1) as u32;
            let left = random.below(u64::from(width - wide) + 1) as u32;
            region = Some(Region { top, left, height: high, width: wide });
            break;
        }
    }
    let region = region.unwrap_or_else(|| central((width, height), ratio));
    Augmentation { region, flipped: random.unit() < flip }
}

/// The largest central region whose aspect ratio is allowed.
fn central((width, height): (u32, u32), ratio: (f64, f64)) -> Region {
    let aspect = f64::from(width) / f64::from(height);
    let (wide, high) = if aspect < ratio.0 {
        (width, (f64::from(width) / ratio.0).round_ties_even() as u32)
    } else if aspect > ratio.1 {
        ((f64::from(height) * ratio.1).round_ties_even() as u32, height)
    } else {
        (width, height)
    };
    let (wide, high) = (wide.clamp(1, width), high.clamp(1, height));
    Region { top: (height - high) / 2, left: (width - wide) / 2, height: high, width: wide }
}

/// The size of an image of this size whose shorter side becomes `short`, as torchvision's
/// `Resize(short)`.
pub(crate) fn resized((width, height): (u32, u32), short: u32) -> (u32, u32) {
    let longer = |long: u32, side: u32| (f64::from(short) * f64::from(long) / f64::from(side)) as u32;
    if width <= height { (short, longer(height, width)) } else { (longer(width, height), short) }
}

/// The central region of a larger image, as torchvision's `CenterCrop`.
pub(crate) fn center((width, height): (u32, u32), (wide, high): (u32, u32)) -> Region {
    let half = |whole: u32, part: u32| (f64::from(whole - part) / 2.0).round_ties_even() as u32;
    Region { top: half(height, high), left: half(width, wide), height: high, width: wide }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCALE: (f64, f64) = (0.08, 1.0);
    const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

    fn drawn(size: (u32, u32), sample: u64) -> Augmentation {
        random(size, SCALE, RATIO, 0.5, Draw { seed: 7, epoch: 3, sample })
    }

    #[test]
    fn draws_are_those_of_earlier_releases() {
        let region = |top, left, height, width| Region { top, left, height, width };
        let known = [
            Augmentation { region: region(76, 138, 283, 353), flipped: false },
            Augmentation { region: region(9, 109, 317, 316), flipped: false },
            Augmentation { region: region(18, 174, 295, 316), flipped: false },
        ];
        let drawn: Vec<_> = (0..3).map(|sample| drawn((500, 375), sample)).collect();
        assert_eq!(drawn, known);
    }

    #[test]
    fn areas_and_flips_have_their_distribution() {
        let count = 4000;
        let all: Vec<_> = (0..count).map(|sample| drawn((500, 375), sample)).collect();
        let area = |one: &Augmentation| f64::from(one.region.width * one.region.height) / (500.0 * 375.0);
        let mean = all.iter().map(area).sum::<f64>() / f64::from(count as u32);
        // The mean of 0.08 to 1 is 0.54, but many large regions do not fit. torchvision's mean is
        // 0.43.
        assert!((0.42..0.44).contains(&mean), "{mean}");
        let flips = all.iter().filter(|one| one.flipped).count();
        assert!((1850..2150).contains(&flips), "{flips}");
    }

    #[test]
    fn epochs_and_seeds_draw_otherwise() {
        let one = |seed, epoch| random((500, 375), SCALE, RATIO, 0.5, Draw { seed, epoch, sample: 1 });
        assert_ne!(one(0, 0), one(0, 1));
        assert_ne!(one(0, 0), one(1, 0));
        assert_eq!(one(5, 6), one(5, 6));
    }

    proptest! {
        #[test]
        fn regions_lie_in_the_image(width in 1u32..3000, height in 1u32..3000, sample: u64) {
            let Region { top, left, height: high, width: wide } = drawn((width, height), sample).region;
            prop_assert!(high >= 1 && wide >= 1);
            prop_assert!(top + high <= height && left + wide <= width);
        }

        #[test]
        fn resized_images_cover_the_short_side(width in 1u32..5000, height in 1u32..5000, short in 1u32..99) {
            let (wide, high) = resized((width, height), short);
            prop_assert_eq!(wide.min(high), short);
        }
    }
}
