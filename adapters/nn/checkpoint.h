#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/adapters/nn/data_loader.h"
#include "tutti/adapters/nn/parameter.h"

namespace tutti::nn {

/// Tensors by name, of any device, and words by name in one file, in the safetensors layout: 8
/// bytes of length, a JSON header, raw data. Of any size that memory and disk hold. A draft beside
/// it takes the file's place once it is whole on the disk, so a crash or an error while writing
/// leaves the old file.
struct Checkpoint {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> words;

  /// Throws Error(io) that names the file, and Error(invalid_argument) for a name that the layout
  /// cannot hold.
  void write(const std::string& file) const;
  /// Into the host's memory. Throws Error(io | corrupt_data) that names the file and what is wrong
  /// with it.
  static Checkpoint read(const std::string& file);
};

/// All that training needs to go on as if it had not stopped, to the bit.
void save_training(const std::string& file, const std::vector<Parameter>& parameters,
                   const std::vector<NamedState>& optimizer_state, const LoaderPosition& position);
/// Into the given tensors. Throws Error(corrupt_data) naming a tensor that is missing or has
/// another shape; then nothing was changed.
LoaderPosition load_training(const std::string& file, const std::vector<Parameter>& parameters,
                             const std::vector<NamedState>& optimizer_state);

}  // namespace tutti::nn
