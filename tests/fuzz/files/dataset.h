#pragma once

#include <zlib.h>

#include <string>
#include <string_view>

#include "tests/fuzz/harness.h"
#include "tutti/adapters/nn/data.h"
#include "tutti/base/error.h"

namespace tutti::fuzz {

/// Reads a dataset. Any error other than that of a damaged file is a finding. Returns true if
/// everything is in bounds.
template <class Read>
bool takes_dataset(const Read& read) {
  try {
    const nn::Dataset data = read();
    require(data.labels.count() == data.images.shape()[0], "images without a label each");
    for (const uint8_t label : data.labels.template span<uint8_t>())
      require(label < data.classes, "a label is of no class");
    return true;
  } catch (const Error& error) {
    require(error.code() == ErrorCode::corrupt_data, error.what());
    return false;
  }
}

/// Returns `text` as gzip would write it.
inline std::string gzipped(std::string_view text) {
  z_stream stream{};
  constexpr int kGzip = 16;
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, MAX_WBITS + kGzip, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// A reader's buffer size, and the most bytes that deflate can unpack from one byte.
inline constexpr size_t kReaderBytes = 8u << 20, kMostUnpacked = 4 * 1032;

}  // namespace tutti::fuzz
