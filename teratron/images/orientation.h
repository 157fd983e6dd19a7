// EXIF's orientation: where a camera wrote it, and the turn that it asks for.
#pragma once

#include "teratron/images/image.h"

namespace teratron {

/// Orientation (1 to 8) in EXIF data, a TIFF header with IFD0, or else in XMP, as Pillow reads them; 1 if
/// neither says one.
int orientation_of(std::span<const uint8_t> exif, std::span<const uint8_t> xmp);

/// 2 mirror, 3 180 degrees, 4 flip, 5 transpose, 6 90 degrees clockwise, 7 transverse, 8 counter-clockwise.
Image turned(Image image, int orientation);
ImageSize turned(ImageSize size, int orientation);

}  // namespace teratron
