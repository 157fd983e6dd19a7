#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <jpeglib.h>
// After jpeglib.h, which it needs.
#include <jerror.h>

#include "teratron/images/image_format.h"
#include "teratron/images/orientation.h"
#include "teratron/images/pixel_arithmetic.h"

namespace teratron {

namespace {

constexpr int kMaxScans = 500;
// Pixels times scans of a progressive image: its scans may be nearly empty, but each visits all blocks.
constexpr int64_t kMaxScanPixels = int64_t{6} << 30;

// libjpeg leaves by longjmp: what runs in attempt() must not own anything.
struct JpegState {
  jpeg_error_mgr errors;
  jpeg_decompress_struct info;
  jpeg_progress_mgr progress;
  jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
};

JpegState& state_of(j_common_ptr info) {
  return *static_cast<JpegState*>(info->client_data);
}

[[noreturn]] void escape_with_message(j_common_ptr info) {
  JpegState& state = state_of(info);
  info->err->format_message(info, state.message);
  longjmp(state.escape, 1);
}

[[noreturn]] void escape_with_text(j_common_ptr info, const char* text) {
  JpegState& state = state_of(info);
  std::snprintf(state.message, sizeof state.message, "%s", text);
  longjmp(state.escape, 1);
}

// Damage that libjpeg would fill with gray.
void refuse_damage(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
      escape_with_text(info, "premature end of the file");
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      escape_with_message(info);
    default:
      return;
  }
}

void count_scans(j_common_ptr info) {
  const auto& decoder = *reinterpret_cast<j_decompress_ptr>(info);
  const int64_t scans = decoder.input_scan_number;
  const int64_t pixels = int64_t{decoder.image_width} * decoder.image_height;
  if (scans > kMaxScans || (scans > 20 && scans * pixels > kMaxScanPixels))
    escape_with_text(info, "too many scans");
}

void no_output(j_common_ptr) {}

template <class Body>
[[gnu::noinline]] bool attempt(JpegState& state, const Body& body) {
  if (setjmp(state.escape) != 0) return false;
  body(state.info);
  return true;
}

class JpegDecoder {
 public:
  explicit JpegDecoder(const EncodedImage& encoded) : encoded_(encoded), state_() {
    state_.info.err = jpeg_std_error(&state_.errors);
    state_.errors.error_exit = escape_with_message;
    state_.errors.emit_message = refuse_damage;
    state_.errors.output_message = no_output;
    state_.progress.progress_monitor = count_scans;
    state_.info.client_data = &state_;
    run([](jpeg_decompress_struct& info) { jpeg_create_decompress(&info); });
    state_.info.progress = &state_.progress;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&state_.info); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  ImageHeader read_header() {
    run([this](jpeg_decompress_struct& info) {
      jpeg_mem_src(&info, encoded_.bytes.data(), encoded_.bytes.size());
      jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
      jpeg_read_header(&info, TRUE);
    });
    const ImageSize size{state_.info.image_width, state_.info.image_height};
    check_image_size(encoded_, size);
    return {size, orientation()};
  }

  Image read_pixels(ImageSize size) {
    const int channels = state_.info.num_components;
    if (channels != 1 && channels != 3 && channels != 4)
      refuse_image(encoded_, "JPEG", fmt::format("it has {} components", channels));
    state_.info.out_color_space = channels == 4 ? JCS_CMYK : JCS_RGB;
    Image image(size);
    std::vector<uint8_t> cmyk(channels == 4 ? static_cast<size_t>(size.width) * 4 : 0);
    run([&image, line = cmyk.data(), channels](jpeg_decompress_struct& info) {
      jpeg_start_decompress(&info);
      if (channels == 4) {
        read_cmyk(info, line, image);
      } else {
        read_rgb(info, image);
      }
      jpeg_finish_decompress(&info);
    });
    return image;
  }

 private:
  static void read_rgb(jpeg_decompress_struct& info, Image& image) {
    constexpr int64_t kRows = 16;
    while (info.output_scanline < info.output_height) {
      JSAMPROW rows[kRows];
      const int64_t first = info.output_scanline;
      const int64_t count = std::min(kRows, image.height() - first);
      for (int64_t i = 0; i < count; ++i) rows[i] = image.row(first + i);
      jpeg_read_scanlines(&info, rows, static_cast<JDIMENSION>(count));
    }
  }

  static void read_cmyk(jpeg_decompress_struct& info, uint8_t* line, Image& image) {
    while (info.output_scanline < info.output_height) {
      uint8_t* const target = image.row(info.output_scanline);
      JSAMPROW row = line;
      jpeg_read_scanlines(&info, &row, 1);
      inverted_cmyk_to_rgb(line, image.width(), target);
    }
  }

  int orientation() const {
    using Bytes = std::span<const uint8_t>;
    constexpr std::string_view exif{"Exif\0\0", 6}, xmp{"http://ns.adobe.com/xap/1.0/\0", 29};
    std::vector<uint8_t> exif_data;  // may go over several markers
    Bytes xmp_data;
    for (const jpeg_marker_struct* marker = state_.info.marker_list; marker; marker = marker->next) {
      const Bytes data(marker->data, marker->data_length);
      const std::string_view text = text_of(data);
      if (text.starts_with(exif)) {
        const Bytes part = data.subspan(exif.size());
        exif_data.insert(exif_data.end(), part.begin(), part.end());
      } else if (text.starts_with(xmp)) {
        xmp_data = data.subspan(xmp.size());
      }
    }
    return orientation_of(exif_data, xmp_data);
  }

  template <class Body>
  void run(const Body& body) {
    if (!attempt(state_, body)) refuse_image(encoded_, "JPEG", state_.message);
  }

  const EncodedImage& encoded_;
  JpegState state_;
};

}  // namespace

bool is_jpeg(std::span<const uint8_t> bytes) {
  return bytes.size() >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff;
}

ImageHeader read_jpeg_header(const EncodedImage& encoded) {
  return JpegDecoder(encoded).read_header();
}

Image decode_jpeg(const EncodedImage& encoded, ImageHeader& header) {
  JpegDecoder decoder(encoded);
  header = decoder.read_header();
  return decoder.read_pixels(header.size);
}

}  // namespace teratron
