#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// A range of elements of a tensor, and where a checkpoint stores it.
struct CheckpointPart {
  ElementRange range;
  int file = 0;         // index into Manifest::files
  uint64_t offset = 0;  // offset of the range's first byte in the file, in bytes
  /// 64-bit XXH3 of the bytes; none for a file without a manifest.
  std::optional<uint64_t> checksum;
};

/// A tensor in a checkpoint.
struct CheckpointEntry {
  Shape shape;
  DataType dtype = DataType::f32;
  std::vector<CheckpointPart> parts;  // in order; together the parts hold each element once
};

/// The contents of a checkpoint and where they are: one file per rank, in safetensors' layout.
struct Manifest {
  struct File {
    std::string name;  // name in the checkpoint's folder
    uint64_t bytes = 0;
  };
  int64_t step = 0;
  std::map<std::string, std::string> words;
  std::vector<File> files;  // one per rank that wrote, in the order of the ranks
  std::map<std::string, CheckpointEntry> tensors;

  /// Returns JSON with a checksum of its own. Throws Error(invalid_argument) for names and words
  /// that are not UTF-8.
  std::string to_text() const;
  /// Reads the text of a manifest. Throws Error(corrupt_data), which names `where` and what is
  /// wrong. The result is consistent: parts make up whole tensors and are inside their files.
  static Manifest parse(const std::string& where, std::string_view text);
  /// Makes the manifest of a plain safetensors file of `file_bytes` bytes. `head` is the first part
  /// of the file; header_bytes() returns its length. The step and the checksums are then unknown.
  static Manifest of_header(const std::string& where, std::string_view head, uint64_t file_bytes);
  /// Returns the number of bytes of a safetensors file before its data, as the file's first 8 bytes
  /// say. Throws Error(corrupt_data) if the file is shorter than that.
  static uint64_t header_bytes(const std::string& where, std::string_view first,
                               uint64_t file_bytes);
};

/// A tensor, or a part of one, as a file stores it.
struct FilePart {
  std::string name;
  Shape shape;  // shape of the whole tensor
  DataType dtype = DataType::f32;
  ElementRange range;
};

/// The reserved name in a safetensors header under which the file's free texts are stored.
inline constexpr const char* kMetadataName = "__metadata__";

/// Returns the header of a safetensors file that stores these parts one after another. A part of a
/// tensor is stored as a vector of its elements; the file's metadata say which elements they are.
/// Throws Error(invalid_argument) for names and words that are not UTF-8.
std::string safetensors_header(const std::vector<FilePart>& parts,
                               std::map<std::string, std::string> words = {});

/// Returns safetensors' name of an element type, such as "F32".
std::string_view safetensors_type(DataType dtype);

}  // namespace tutti
