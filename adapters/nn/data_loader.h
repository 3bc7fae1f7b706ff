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

/// f32 images scaled to mean 0.5 below zero and above (value / 255 - 0.5), i64 labels of the host.
struct Batch {
  Tensor images;
  Tensor labels;
};

struct LoaderOptions {
  int64_t batch = 32;  // images of one rank per step
  int rank = 0;        // of `size` ranks that share the dataset
  int size = 1;
  bool shuffle = true;    // anew in each epoch
  uint64_t seed = 1;      // equal on all ranks
  bool drop_last = true;  // steps that cannot fill every rank's batch are left out; otherwise
                          // ranks may end with smaller batches, or differ by one step: use join()
  /// Where the images go. To a device they are copied ahead, on a stream of the loader's own, while
  /// the batch before is worked on; `stream`, on which they will be read, waits for them: a model's
  /// device() and stream(). It must outlive the batches.
  Device device = {};
  StreamRef stream = {};
};

/// Where a loader stands; restoring it goes on with the very next batch, on any number of ranks.
struct LoaderPosition {
  int64_t epoch = 0;
  int64_t step = 0;
  /// Images of the epoch that all ranks together have had; negative: `step` times the global batch.
  int64_t consumed = -1;
  int64_t order = kSampleOrder;  // of the epoch's samples; see there
};

/// Deals a dataset to the ranks: in every step rank r gets the r-th part of the step's global batch
/// (size * batch images), so that the global batches do not depend on how many ranks share them.
/// One batch is prepared ahead by another thread. Iterating goes through what is left of the
/// current epoch and then begins the next one. A fork of the process may destroy it; next() and
/// restore() throw Error(closed) there, because the thread is the parent's.
class DataLoader {
 public:
  /// The dataset must outlive the loader. Throws Error(invalid_argument) for a batch below 1, a
  /// rank out of range, or fewer images than one step needs; Error(unavailable) where there is no
  /// such device.
  DataLoader(const Dataset& dataset, const LoaderOptions& options);
  /// The thread that prepares a batch works on this very object.
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  int64_t steps_per_epoch() const;
  LoaderPosition position() const { return position_; }
  /// Throws Error(invalid_argument) for a negative epoch or step, Error(corrupt_data) for one
  /// within an epoch whose samples are shuffled in another order. Past the epoch's end is its end.
  void restore(const LoaderPosition& position);

  /// The next batch of this epoch, or nothing at its end (and the next epoch begins). Throws
  /// Error(out_of_memory) where the device has no room for it; the next call tries again.
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
  std::shared_ptr<Courier> courier_;          // to the device; null: there is none
  OwnedWhereMade<std::future<Batch>> ahead_;  // its thread is not in a fork, which would wait
};

}  // namespace tutti::nn
