#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <png.h>

#include "teratron/images/image_format.h"
#include "teratron/images/orientation.h"
#include "teratron/images/pixel_arithmetic.h"

namespace teratron {

namespace {

using Bytes = std::span<const uint8_t>;

constexpr std::string_view signature{"\x89PNG\r\n\x1a\n", 8};

uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

// Calls visit(type, data) for the chunks that are whole.
template <class Visit>
void for_each_chunk(Bytes file, const Visit& visit) {
  constexpr size_t kAround = 12;  // length, type, CRC
  for (size_t at = signature.size(); file.size() - at >= kAround;) {
    const uint64_t length = big_endian(file.data() + at);
    if (length > file.size() - at - kAround) return;
    visit(text_of(file.subspan(at + 4, 4)), file.subspan(at + 8, length));
    at += kAround + length;
  }
}

// Text of an iTXt chunk with XMP, unless it is compressed.
Bytes xmp_of(Bytes chunk) {
  constexpr std::string_view keyword{"XML:com.adobe.xmp\0\0\0", 20};  // not compressed
  if (!text_of(chunk).starts_with(keyword)) return {};
  size_t at = keyword.size();
  for (int skipped = 0; skipped < 2; ++skipped) {  // language, translated keyword
    const size_t end = text_of(chunk).find('\0', at);
    if (end == std::string_view::npos) return {};
    at = end + 1;
  }
  return chunk.subspan(at);
}

int png_orientation(Bytes file) {
  Bytes exif, xmp;
  for_each_chunk(file, [&](std::string_view type, Bytes data) {
    if (type == "eXIf") exif = data;
    if (type == "iTXt" && !xmp_of(data).empty()) xmp = xmp_of(data);
  });
  return orientation_of(exif, xmp);
}

// deflate compresses to a 1032nd at best, so a short file cannot hold many pixels.
void check_compression(const EncodedImage& encoded, ImageSize size, const uint8_t* ihdr) {
  constexpr int64_t kMaxRatio = 1040;
  constexpr int channels[] = {1, 0, 3, 1, 2, 0, 4};
  const int color_type = ihdr[9];
  const int64_t bits = int64_t{ihdr[8]} * (color_type <= 6 ? channels[color_type] : 0);
  const int64_t bytes = size.height * ((size.width * bits + 7) / 8);
  const auto stored = static_cast<int64_t>(encoded.bytes.size());
  if (bytes / kMaxRatio > stored) {
    refuse_image(encoded, "PNG",
                 fmt::format("{} x {} pixels cannot be in {} bytes", size.width, size.height, stored));
  }
}

// libpng leaves by longjmp: what runs in attempt() must not own anything.
struct PngState {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Bytes rest;
  jmp_buf escape;
  char message[200] = {};
};

[[noreturn]] void escape_with_message(png_structp png, png_const_charp text) {
  PngState& state = *static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state.message, sizeof state.message, "%s", text);
  longjmp(state.escape, 1);
}

void no_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, size_t count) {
  PngState& state = *static_cast<PngState*>(png_get_io_ptr(png));
  if (count > state.rest.size()) png_error(png, "premature end of the file");
  std::memcpy(out, state.rest.data(), count);
  state.rest = state.rest.subspan(count);
}

template <class Body>
[[gnu::noinline]] bool attempt(PngState& state, const Body& body) {
  if (setjmp(state.escape) != 0) return false;
  body(state);
  return true;
}

class PngDecoder {
 public:
  explicit PngDecoder(const EncodedImage& encoded) : encoded_(encoded) {
    state_.rest = encoded.bytes;
    const auto max_side = static_cast<png_uint_32>(encoded.limits.max_side);
    run([max_side](PngState& state) {
      state.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, escape_with_message, no_warning);
      state.info = png_create_info_struct(state.png);
      png_set_read_fn(state.png, &state, read_bytes);
      png_set_crc_action(state.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
      png_set_user_limits(state.png, max_side, max_side);
      png_set_chunk_cache_max(state.png, 128);
      png_set_chunk_malloc_max(state.png, 1 << 20);
      // What does not change pixels here is not even decompressed.
      constexpr const char* kSkipped = "cHRM\0gAMA\0iCCP\0iTXt\0sBIT\0sPLT\0sRGB\0tEXt\0zTXt\0hIST\0eXIf";
      png_set_keep_unknown_chunks(state.png, PNG_HANDLE_CHUNK_NEVER,
                                  reinterpret_cast<png_const_bytep>(kSkipped), 11);
    });
  }
  ~PngDecoder() { png_destroy_read_struct(&state_.png, &state_.info, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  Image read_pixels(ImageSize size) {
    int passes = 1, channels = 0;
    run([&](PngState& state) {
      png_read_info(state.png, state.info);
      png_set_expand(state.png);
      png_set_strip_16(state.png);
      png_set_gray_to_rgb(state.png);
      passes = png_set_interlace_handling(state.png);
      png_read_update_info(state.png, state.info);
      channels = png_get_channels(state.png, state.info);
    });
    const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(state_.png, state_.info));
    if ((channels != 3 && channels != 4) || row_bytes != size.width * channels)
      refuse_image(encoded_, "PNG", fmt::format("rows of {} bytes", row_bytes));
    Image image(size);
    if (channels == 3) {
      read_rows({.row = image.row(0), .stride = row_bytes, .passes = passes}, image);
    } else if (passes == 1) {
      std::vector<uint8_t> line(static_cast<size_t>(row_bytes));
      read_rows({.row = line.data()}, image);
    } else {
      const auto rgba =
          std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(row_bytes * size.height));
      read_rows({.row = rgba.get(), .stride = row_bytes, .passes = passes}, image);
      rgba_over_white(rgba.get(), size.pixels(), image.row(0));
    }
    return image;
  }

 private:
  // Where rows are read to; without a stride each is one of RGBA, that goes over white at once.
  struct Rows {
    uint8_t* row;
    int64_t stride = 0;
    int passes = 1;
  };

  void read_rows(const Rows& rows, Image& image) {
    run([&rows, &image](PngState& state) {
      for (int pass = 0; pass < rows.passes; ++pass) {
        for (int64_t y = 0; y < image.height(); ++y) {
          png_read_row(state.png, rows.row + y * rows.stride, nullptr);
          if (rows.stride == 0) rgba_over_white(rows.row, image.width(), image.row(y));
        }
      }
      png_read_end(state.png, nullptr);
    });
  }

  template <class Body>
  void run(const Body& body) {
    if (!attempt(state_, body)) refuse_image(encoded_, "PNG", state_.message);
  }

  const EncodedImage& encoded_;
  PngState state_;
};

}  // namespace

bool is_png(std::span<const uint8_t> bytes) {
  return text_of(bytes).starts_with(signature);
}

ImageHeader read_png_header(const EncodedImage& encoded) {
  constexpr size_t kIhdr = 8 + 8 + 13;
  if (encoded.bytes.size() < kIhdr) refuse_image(encoded, "PNG", "premature end of the file");
  if (text_of(encoded.bytes.subspan(12, 4)) != "IHDR")
    refuse_image(encoded, "PNG", "it does not begin with IHDR");
  const uint8_t* const ihdr = encoded.bytes.data() + 16;
  const ImageSize size{big_endian(ihdr), big_endian(ihdr + 4)};
  check_image_size(encoded, size);
  check_compression(encoded, size, ihdr);
  return {size, png_orientation(encoded.bytes)};
}

Image decode_png(const EncodedImage& encoded, ImageHeader& header) {
  header = read_png_header(encoded);
  return PngDecoder(encoded).read_pixels(header.size);
}

}  // namespace teratron
