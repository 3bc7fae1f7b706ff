#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/adapters/nn/dataset.h"
#include "tutti/adapters/sampling/sampler.h"
#include "tutti/base/process/fork_guard.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {

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
