#include "tutti/adapters/checkpoint/part_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tutti/base/error.h"

namespace tutti {

namespace {

constexpr uint64_t kReadAtOnce = 1 << 20;

}  // namespace

PartReader::PartReader(const std::string& file)
    : file_(file), fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat about {};
  if (!fd_ || ::fstat(fd_.get(), &about) != 0)
    throw system_error(fmt::format("cannot open \"{}\"", file), errno);
  if (!S_ISREG(about.st_mode))
    throw Error(ErrorCode::corrupt_data, fmt::format("\"{}\" is not a plain file", file));
  bytes_ = static_cast<uint64_t>(about.st_size);
}

void PartReader::read(uint64_t offset, void* to, uint64_t bytes) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const auto got = ::pread(fd_.get(), at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error(fmt::format("cannot read \"{}\"", file_), errno);
    if (got == 0)
      throw Error(
          ErrorCode::corrupt_data,
          fmt::format("\"{}\" ended at {} of {} bytes while it was read", file_, offset, bytes_));
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

std::string PartReader::text(uint64_t offset, uint64_t bytes) const {
  std::string text(bytes, '\0');
  read(offset, text.data(), bytes);
  return text;
}

const PartReader& PartFiles::file(int index) {
  const auto found = open_.find(index);
  if (found != open_.end()) return found->second;
  const auto& [name, bytes] = manifest_.files[static_cast<size_t>(index)];
  const auto& file = open_.try_emplace(index, folder_ + name).first->second;
  if (file.bytes() != bytes)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("\"{}{}\" has {} bytes, expected {}; load an older step", folder_, name,
                            file.bytes(), bytes));
  return file;
}

std::vector<std::byte> PartFiles::read(const std::string& tensor, ElementRange range) {
  const auto& entry = manifest_.tensors.at(tensor);
  const int64_t each = size_of(entry.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(range.count() * each));
  for (const auto& part : entry.parts)
    if (part.range.begin < range.end && range.begin < part.range.end)
      read_part(tensor, part, each, range, bytes.data());
  return bytes;
}

// Reads those elements of `range` that the part has. `to` is the memory of the first element of
// `range`.
void PartFiles::read_part(const std::string& tensor, const CheckpointPart& part,
                          int64_t element_bytes, ElementRange range, std::byte* to) {
  const auto& source = file(part.file);
  const auto in_bytes = [&](int64_t elements) {
    return static_cast<uint64_t>(elements * element_bytes);
  };
  // The byte offsets of the wanted elements in the part.
  const auto wanted_begin = in_bytes(std::max(range.begin, part.range.begin) - part.range.begin);
  const auto wanted_end = in_bytes(std::min(range.end, part.range.end) - part.range.begin);
  to += in_bytes(std::max(range.begin, part.range.begin) - range.begin);
  if (!part.checksum) {
    source.read(part.offset + wanted_begin, to, wanted_end - wanted_begin);
    return;
  }
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const uint64_t all = in_bytes(part.range.count());
  std::vector<std::byte> some(std::min(all, kReadAtOnce));
  for (uint64_t at = 0; at < all; at += some.size()) {
    const auto bytes = std::min<uint64_t>(some.size(), all - at);
    source.read(part.offset + at, some.data(), bytes);
    XXH3_64bits_update(state.get(), some.data(), bytes);
    const auto begin = std::max(at, wanted_begin), end = std::min(at + bytes, wanted_end);
    if (begin < end)
      std::memcpy(to + (begin - wanted_begin), some.data() + (begin - at), end - begin);
  }
  if (const auto got = XXH3_64bits_digest(state.get()); got != *part.checksum)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("\"{}\": elements {} to {} in \"{}{}\" have checksum {:016x}, expected "
                    "{:016x}; load an older step",
                    tensor, part.range.begin, part.range.end, folder_,
                    manifest_.files[static_cast<size_t>(part.file)].name, got, *part.checksum))
        .with_tensor(tensor);
}

}  // namespace tutti
