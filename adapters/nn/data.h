#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/adapters/sampling/sampler.h"
#include "tutti/base/process/fork_guard.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {

/// Images as bytes [count, channels, height, width], with one label each, in memory.
struct Dataset {
  Tensor images;  // u8
  Tensor labels;  // u8
  int64_t classes = 0;
  int64_t count() const { return labels.count(); }
};

/// Reads MNIST's IDX format: images (magic 2051) and labels (magic 2049), plain or gzipped. Throws
/// Error(io) or Error(corrupt_data), which names the file, what was expected and what was found.
Dataset read_mnist(const std::string& images_file, const std::string& labels_file);

/// Reads CIFAR-10's binary format: records of a label and 3 x 32 x 32 bytes, plain or gzipped. The
/// files are read one after another.
Dataset read_cifar10(const std::vector<std::string>& files);

/// Sequences of bytes, and for each byte the one that follows it. A language model of bytes learns
/// to predict the latter.
struct Sequences {
  Tensor input, next;  // i64 [count, length], 0 to 255
};

/// A text in memory whose tokens are its bytes. The file is plain or gzipped.
class TextDataset {
 public:
  /// Throws the errors of read_file(), and Error(corrupt_data) if the file has no more than
  /// `length` bytes. One sequence needs one byte more than that.
  TextDataset(const std::string& file, int64_t length);
  /// Returns sequences `first` to first + count - 1 of the step's batch. Each begins at a position
  /// that is drawn from (seed, step, number of the sequence), so every rank would get the same.
  Sequences sequences(uint64_t seed, uint32_t step, int64_t first, int64_t count) const;

 private:
  std::vector<std::byte> text_;
  const int64_t length_;
};

/// Reads a whole file, unpacked if it is gzipped, of at most `most_bytes`. Throws the errors of
/// read_mnist().
std::vector<std::byte> read_file(const std::string& file, size_t most_bytes = size_t{1} << 31);

/// f32 images, scaled to value / 255 - 0.5, and i64 labels in host memory.
struct Batch {
  Tensor images;
  Tensor labels;
};

struct LoaderOptions {
  int64_t batch = 32;  // images of one rank per step
  int rank = 0;        // index of this rank among `size` ranks that share the dataset
  int size = 1;
  bool shuffle = true;  // a different order in each epoch
  uint64_t seed = 1;    // equal on all ranks
  // If true, steps that cannot fill every rank's batch are left out. If false, ranks may end with
  // smaller batches or have one step more than others; use join() then.
  bool drop_last = true;
  /// The images go to this device. They are copied one batch ahead on a stream of the loader's own.
  /// `stream` is the stream that will read them; it waits for the copy. Pass a model's device() and
  /// stream(). The stream must outlive the batches.
  Device device = {};
  StreamRef stream = {};
};

/// A position of a loader. A loader that restores it continues with the next batch, on any number
/// of ranks.
struct LoaderPosition {
  int64_t epoch = 0;
  int64_t step = 0;
  /// Number of images of the epoch that all ranks together have received. A negative number stands
  /// for `step` times the global batch.
  int64_t consumed = -1;
  int64_t order = kSampleOrder;  // version of the order of the epoch's samples
};

/// Deals a dataset to the ranks: in every step rank r gets the r-th part of the step's global batch
/// (size * batch images). So the global batches do not depend on how many ranks share them. Another
/// thread prepares one batch ahead. Iterating goes through the rest of the current epoch, after
/// which the next epoch begins. In a forked process the loader may be destroyed, but next() and
/// restore() throw Error(closed), because the thread exists only in the parent.
class DataLoader {
 public:
  /// The dataset must outlive the loader. Throws Error(invalid_argument) for a batch below 1, a
  /// rank out of range, or fewer images than one step needs, and Error(unavailable) if the device
  /// does not exist.
  DataLoader(const Dataset& dataset, const LoaderOptions& options);
  /// A loader cannot be copied, because the thread that prepares a batch uses this object.
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  int64_t steps_per_epoch() const;
  LoaderPosition position() const { return position_; }
  /// Throws Error(invalid_argument) for a negative epoch or step. Throws Error(corrupt_data) for a
  /// position within an epoch whose samples were shuffled in another order. A position past the
  /// epoch's end is taken as its end.
  void restore(const LoaderPosition& position);

  /// Returns the next batch of this epoch. At the epoch's end it returns nothing and the next epoch
  /// begins. Throws Error(out_of_memory) if the device has no memory for the batch; the next call
  /// tries again.
  std::optional<Batch> next();

  class Iterator {
   public:
    explicit Iterator(DataLoader* loader) : loader_(loader) { ++*this; }
    Iterator() = default;
    const Batch& operator*() const { return *batch_; }
    Iterator& operator++() {
      batch_ = loader_->next();
      return *this;
    }
    bool operator==(const Iterator& other) const {
      return batch_.has_value() == other.batch_.has_value();
    }

   private:
    DataLoader* loader_ = nullptr;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(this); }
  Iterator end() { return {}; }

 private:
  class Courier;
  Batch make(int64_t epoch, int64_t consumed);
  bool has_batch() const;
  void check_not_forked() const;
  void prefetch();
  void order_epoch(int64_t epoch);

  const Dataset& dataset_;
  const LoaderOptions options_;
  LoaderPosition position_{.consumed = 0};
  int64_t ordered_epoch_ = -1;
  std::vector<int64_t> order_;
  const ForkGuard fork_guard_;
  std::shared_ptr<Courier> courier_;  // copies to the device; null if there is none
  OwnedWhereMade<std::future<Batch>>
      ahead_;  // a forked process lacks the future's thread and must not wait
};

}  // namespace tutti::nn
