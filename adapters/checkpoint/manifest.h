#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/adapters/sharded/placement.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// Some elements of a tensor, where they lie in a checkpoint.
struct CheckpointPart {
  ElementRange range;
  int file = 0;         // index into Manifest::files
  uint64_t offset = 0;  // of their first byte in it
  /// XXH3 of 64 bits over the bytes; none in a file that no manifest came with.
  std::optional<uint64_t> checksum;
};

/// A tensor in a checkpoint.
struct CheckpointEntry {
  Shape shape;
  DataType dtype = DataType::f32;
  std::vector<CheckpointPart> parts;  // in order, of all elements once
};

/// What a checkpoint holds and where: one file a rank, in safetensors' layout.
struct Manifest {
  struct File {
    std::string name;  // in the checkpoint's folder
    uint64_t bytes = 0;
  };
  int64_t step = 0;
  std::map<std::string, std::string> words;
  std::vector<File> files;  // by rank of those that wrote
  std::map<std::string, CheckpointEntry> tensors;

  /// JSON with a checksum of its own. Names and words that are not UTF-8: Error(invalid_argument).
  std::string to_text() const;
  /// Throws Error(corrupt_data) that names `where` and what is wrong; what it returns holds
  /// together: parts make up whole tensors and lie inside their files.
  static Manifest parse(const std::string& where, std::string_view text);
  /// Of a plain safetensors file, from its header: `file_bytes` long, beginning with `head` (as
  /// much of it as header_bytes() says). Step and checksums are not known.
  static Manifest of_header(const std::string& where, std::string_view head, uint64_t file_bytes);
  /// Bytes of a safetensors file up to its data, by its first 8; Error(corrupt_data) where the file
  /// has fewer.
  static uint64_t header_bytes(const std::string& where, std::string_view first,
                               uint64_t file_bytes);
};

/// A tensor, or a part of one, as a file holds it.
struct FilePart {
  std::string name;
  Shape shape;  // of the tensor
  DataType dtype = DataType::f32;
  ElementRange range;
};

/// Where safetensors keeps words, among the names of tensors.
inline constexpr const char* kMetadataName = "__metadata__";

/// The beginning of a safetensors file with these one after another. A part is a vector of its
/// elements; the file's words say of which tensor and from which element on. Names and words that
/// are not UTF-8: Error(invalid_argument).
std::string safetensors_header(const std::vector<FilePart>& parts,
                               std::map<std::string, std::string> words = {});

/// safetensors' name of an element type: "F32".
std::string_view safetensors_type(DataType dtype);

}  // namespace tutti
