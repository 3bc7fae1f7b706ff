#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/adapters/checkpoint/part_reader.h"
#include "tutti/adapters/checkpoint/stored.h"
#include "tutti/base/error.h"
#include "tutti/kernels/convert.h"
#include "tutti/tensor/absent_memory.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

namespace {

// Returns the shape under which the tensors of `ranks` ranks are stored together, if each rank has
// its own.
Shape shape_of_all(const Shape& own, int64_t ranks) {
  std::vector<int64_t> extents = {ranks};
  extents.insert(extents.end(), own.extents().begin(), own.extents().end());
  return Shape(extents);
}

// Returns how many ranks' own tensors an entry of a checkpoint stores. `wanted` is the shape of one
// rank's tensor. Returns 0 if the checkpoint stores one tensor for all ranks, and nothing if the
// shapes do not fit.
std::optional<int64_t> ranks_with_their_own(const CheckpointEntry& entry, const Shape& wanted) {
  if (entry.shape == wanted) return 0;
  if (entry.shape.rank() > 0 && entry.shape[0] > 0 &&
      entry.shape == shape_of_all(wanted, entry.shape[0]))
    return entry.shape[0];
  return {};
}

// Throws if the checkpoint is of another model: if a tensor is missing, not expected or different.
void check_wanted(const std::string& place, const Manifest& manifest,
                  const std::vector<PlacedTensor>& tensors, const LoadOptions& options) {
  const auto refuse = [&](const std::string& name, const std::string& what) {
    return Error(ErrorCode::corrupt_data,
                 fmt::format("\"{}\" is of another model: \"{}\" {}", place, name, what))
        .with_tensor(name);
  };
  std::set<std::string> wanted;
  for (const auto& tensor : tensors) {
    wanted.insert(tensor.name);
    const auto found = manifest.tensors.find(tensor.name);
    if (found == manifest.tensors.end()) throw refuse(tensor.name, "is not in it");
    const auto& entry = found->second;
    const bool fits = tensor.placement.held == Held::own
                          ? ranks_with_their_own(entry, tensor.placement.shape).has_value()
                          : entry.shape == tensor.placement.shape;
    if (!fits || entry.dtype != tensor.here.dtype())
      throw refuse(tensor.name, fmt::format("is {}{} there, expected {}{}", to_string(entry.dtype),
                                            entry.shape.to_string(), to_string(tensor.here.dtype()),
                                            tensor.placement.shape.to_string()));
  }
  if (options.partly) return;
  for (const auto& [name, entry] : manifest.tensors)
    if (!wanted.contains(name))
      throw refuse(name, "is in it, and nobody asked for it; to leave it out set partly");
}

// Reads a rank's own tensor. If the number of ranks is the same as when it was saved, this is the
// tensor that the rank with this index saved. If one tensor was saved for all ranks, this is that
// tensor. Otherwise it is the mean of all ranks' tensors, as an exchange would give; for integer
// types it is one rank's tensor.
std::vector<std::byte> read_own(PartFiles& files, const CheckpointEntry& entry,
                                const PlacedTensor& tensor) {
  const auto& placement = tensor.placement;
  const auto ranks = ranks_with_their_own(entry, placement.shape).value_or(0);
  const int64_t count = placement.shape.count();
  const auto of_rank = [&](int64_t rank) {
    return files.read(tensor.name, {rank * count, (rank + 1) * count});
  };
  if (ranks == 0) return of_rank(0);
  if (ranks == placement.axis_size || !is_float(entry.dtype))
    return of_rank(placement.axis_index % ranks);
  std::vector<double> sum(static_cast<size_t>(count)), one(sum.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto bytes = of_rank(rank);
    cast(entry.dtype, bytes.data(), DataType::f64, reinterpret_cast<std::byte*>(one.data()), count);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i] / static_cast<double>(ranks);
  }
  std::vector<std::byte> mean(static_cast<size_t>(count * size_of(entry.dtype)));
  cast(DataType::f64, reinterpret_cast<const std::byte*>(sum.data()), entry.dtype, mean.data(),
       count);
  return mean;
}

}  // namespace

// Returns the shape as the files store it.
Shape stored_shape(const Placement& placement) {
  return placement.held == Held::own ? shape_of_all(placement.shape, placement.axis_size)
                                     : placement.shape;
}

void check_placed(const Communicator& comm, const PlacedTensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::invalid_argument, fmt::format("\"{}\" {}", tensor.name, why))
        .with_tensor(tensor.name);
  };
  const auto& placement = tensor.placement;
  if (tensor.name.empty() || tensor.name == kMetadataName)
    throw refuse("is not a name for a tensor in a checkpoint; give it another one");
  if (placement.held == Held::partial_sum)
    throw refuse("is a partial sum, of which no rank has the whole; reduce it first");
  if ((placement.held == Held::divided || placement.held == Held::own) &&
      (placement.axis_size != comm.size() || placement.axis_index != comm.rank()))
    throw refuse(fmt::format("is placed as part {} of {}, expected {} of {}, as the communicator",
                             placement.axis_index, placement.axis_size, comm.rank(), comm.size()));
  if (!tensor.here.is_row_major())
    throw refuse("is not row-major, and only such tensors can be saved and loaded; copy it");
  if (tensor.here.count() != placement.here().count())
    throw refuse(fmt::format("has {} elements here, expected {} by its placement",
                             tensor.here.count(), placement.here().count()));
  require_present(tensor.name, tensor.here);
}

// Returns rank 0's choice: the file or folder, a line feed, and its header or manifest. Returns ""
// if there is no checkpoint.
std::string CheckpointFolder::choose(const LoadOptions& options) const {
  struct stat about {};
  if (::stat(folder_.c_str(), &about) == 0 && S_ISREG(about.st_mode)) {
    const PartReader file(folder_);
    const auto first = file.text(0, std::min<uint64_t>(sizeof(uint64_t), file.bytes()));
    return folder_ + "\n" + file.text(0, Manifest::header_bytes(folder_, first, file.bytes()));
  }
  const auto all = steps();
  if (all.empty() && !options.step) return "";
  if (options.step && !std::binary_search(all.begin(), all.end(), *options.step))
    throw Error(ErrorCode::io, fmt::format("there is no step {}; there are steps {}", *options.step,
                                           fmt::join(all, ", ")));
  const int64_t step = options.step.value_or(all.empty() ? 0 : all.back());
  auto place = place_of(step);
  if (::stat(place.c_str(), &about) != 0) place = replaced_place_of(step);
  const PartReader file(place + kManifestName);
  return place + "\n" + file.text(0, file.bytes());
}

std::optional<LoadedCheckpoint> CheckpointFolder::load(const std::vector<PlacedTensor>& tensors,
                                                       const LoadOptions& options) {
  wait();
  const auto choice =
      agree("choice", [&] { return comm_.rank() == 0 ? choose(options) : std::string(); })[0];
  if (choice.empty()) return {};
  const auto line = choice.find('\n');
  const auto place = choice.substr(0, line), text = choice.substr(line + 1);
  const bool is_file = place == folder_;
  Manifest manifest;
  std::vector<std::vector<std::byte>> read;
  agree("read", [&]() -> std::string {
    for (const auto& tensor : tensors) check_placed(comm_, tensor);
    manifest = is_file ? Manifest::of_header(place, text, PartReader(place).bytes())
                       : Manifest::parse(place, text);
    check_wanted(place, manifest, tensors, options);
    if (options.check) options.check(manifest.words);
    PartFiles files(is_file ? "" : place + "/", manifest);
    for (const auto& tensor : tensors)
      read.push_back(tensor.placement.held == Held::own
                         ? read_own(files, manifest.tensors.at(tensor.name), tensor)
                         : files.read(tensor.name, tensor.placement.here()));
    return "";
  });
  agree("end of load", [&]() -> std::string {
    for (size_t i = 0; i < tensors.size(); ++i) copy_from_host(tensors[i].here, read[i].data());
    return "";
  });
  return LoadedCheckpoint{manifest.step, static_cast<int>(manifest.files.size()), manifest.words};
}

}  // namespace tutti
