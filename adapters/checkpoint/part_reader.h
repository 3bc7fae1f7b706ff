#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/adapters/checkpoint/manifest.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A plain file for reading. Failures are Error(io) or Error(corrupt_data), which names the file.
class PartReader {
 public:
  explicit PartReader(const std::string& file);
  uint64_t bytes() const { return bytes_; }  // size of the file
  void read(uint64_t offset, void* to, uint64_t bytes) const;
  std::string text(uint64_t offset, uint64_t bytes) const;  // the bytes as a string

 private:
  const std::string file_;
  const Descriptor fd_;
  uint64_t bytes_ = 0;
};

/// The files of a checkpoint, opened when they are first needed.
class PartFiles {
 public:
  /// `folder` ends with a slash. The manifest must outlive this object.
  PartFiles(std::string folder, const Manifest& manifest)
      : folder_(std::move(folder)), manifest_(manifest) {}
  /// Returns these elements of a tensor. Every part that has some of them is read whole to compute
  /// its checksum. Throws Error(corrupt_data) if a checksum differs.
  std::vector<std::byte> read(const std::string& tensor, ElementRange range);

 private:
  const PartReader& file(int index);
  void read_part(const std::string& tensor, const CheckpointPart& part, int64_t element_bytes,
                 ElementRange range, std::byte* to);

  const std::string folder_;
  const Manifest& manifest_;
  std::map<int, PartReader> open_;
};

}  // namespace tutti
