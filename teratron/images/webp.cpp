#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include "teratron/images/image_format.h"
#include "teratron/images/orientation.h"
#include "teratron/images/pixel_arithmetic.h"

namespace teratron {

namespace {

constexpr const char* damaged = "it is damaged, or ends too early";

// The chunks and frames of a file.
class WebpFile {
 public:
  explicit WebpFile(const EncodedImage& encoded) {
    const WebPData data{encoded.bytes.data(), encoded.bytes.size()};
    demuxer_.reset(WebPDemux(&data));
    if (!demuxer_) refuse_image(encoded, "WebP", damaged);
  }

  // The file has the bytes.
  std::span<const uint8_t> chunk(const char* name) const {
    WebPChunkIterator iterator;
    std::span<const uint8_t> found;
    if (WebPDemuxGetChunk(demuxer_.get(), name, 1, &iterator) != 0)
      found = {iterator.chunk.bytes, iterator.chunk.size};
    WebPDemuxReleaseChunkIterator(&iterator);
    return found;
  }

  bool first_frame(WebPIterator& frame) const { return WebPDemuxGetFrame(demuxer_.get(), 1, &frame) != 0; }

 private:
  struct Delete {
    void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
  };
  std::unique_ptr<WebPDemuxer, Delete> demuxer_;
};

WebPBitstreamFeatures features_of(const EncodedImage& encoded) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(encoded.bytes.data(), encoded.bytes.size(), &features) != VP8_STATUS_OK)
    refuse_image(encoded, "WebP", damaged);
  check_image_size(encoded, {features.width, features.height});
  return features;
}

ImageHeader header_of(const WebPBitstreamFeatures& features, const WebpFile& file) {
  return {{features.width, features.height}, orientation_of(file.chunk("EXIF"), file.chunk("XMP "))};
}

// The first frame on a canvas without colour, as animations may begin with a part of it.
std::unique_ptr<uint8_t[]> read_canvas(const EncodedImage& encoded, const WebPIterator& frame,
                                       ImageSize size) {
  const int64_t stride = size.width * 4;
  auto rgba = std::make_unique<uint8_t[]>(static_cast<size_t>(stride * size.height));
  const bool fits = frame.x_offset >= 0 && frame.y_offset >= 0 &&
                    frame.x_offset + frame.width <= size.width &&
                    frame.y_offset + frame.height <= size.height;
  if (!fits) refuse_image(encoded, "WebP", "a frame is larger than the image");
  const int64_t start = frame.y_offset * stride + frame.x_offset * int64_t{4};
  const auto room = static_cast<size_t>(stride * size.height - start);
  if (WebPDecodeRGBAInto(frame.fragment.bytes, frame.fragment.size, rgba.get() + start, room,
                         static_cast<int>(stride)) == nullptr)
    refuse_image(encoded, "WebP", damaged);
  return rgba;
}

Image read_image(const EncodedImage& encoded, const WebPBitstreamFeatures& features, const WebpFile& file) {
  WebPIterator frame;
  if (!file.first_frame(frame) || frame.complete == 0) refuse_image(encoded, "WebP", damaged);
  Image image({features.width, features.height});
  const bool whole = frame.width == features.width && frame.height == features.height;
  if (whole && features.has_alpha == 0) {
    if (WebPDecodeRGBInto(frame.fragment.bytes, frame.fragment.size, image.row(0), image.bytes().size(),
                          features.width * 3) == nullptr)
      refuse_image(encoded, "WebP", damaged);
    return image;
  }
  const auto rgba = read_canvas(encoded, frame, image.size());
  const auto to_rgb = features.has_alpha != 0 ? rgba_over_white : rgba_without_alpha;
  to_rgb(rgba.get(), image.size().pixels(), image.row(0));
  return image;
}

}  // namespace

bool is_webp(std::span<const uint8_t> bytes) {
  const std::string_view text = text_of(bytes);
  return text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP";
}

ImageHeader read_webp_header(const EncodedImage& encoded) {
  const WebPBitstreamFeatures features = features_of(encoded);
  return header_of(features, WebpFile(encoded));
}

Image decode_webp(const EncodedImage& encoded, ImageHeader& header) {
  const WebPBitstreamFeatures features = features_of(encoded);
  const WebpFile file(encoded);
  header = header_of(features, file);
  return read_image(encoded, features, file);
}

}  // namespace teratron
