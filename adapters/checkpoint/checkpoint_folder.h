#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"

namespace tutti {

/// How a folder of checkpoints is kept.
struct CheckpointOptions {
  int keep = 2;  // whole checkpoints; older ones go when a newer one is whole
};

/// Which checkpoint is loaded, and whether all of it.
struct LoadOptions {
  std::optional<int64_t> step = std::nullopt;  // none: the newest whole one
  bool partly = false;                         // whether it may hold tensors that nobody asked for
  /// It is called with the words before any tensor is changed. If it throws, load() throws that
  /// error on all ranks.
  std::function<void(const std::map<std::string, std::string>& words)> check = {};
};

/// What saving has cost this rank so far.
struct CheckpointStatistics {
  int64_t saves = 0;        // that ended, or were begun in the background
  int64_t bytes = 0;        // of tensors that fell to this rank to write, failed saves' included
  double held_seconds = 0;  // until save() or save_in_background() returned
};

/// What a checkpoint holds beside tensors.
struct LoadedCheckpoint {
  int64_t step = 0;                          // that it was saved as
  int members = 0;                           // ranks that wrote it; 1 for a single file
  std::map<std::string, std::string> words;  // that save() was given
};

/// Checkpoints of a job in a folder that all its ranks see: "step-12" holds one safetensors file a
/// rank and manifest.json. Each rank writes what it alone holds and its share of what all hold.
/// They are written beside, to the disk, and only then take their name, so a name that is there is
/// whole, whatever happens to the job. Loads on any number of ranks and into any placement; what
/// each rank has of its own (Held::own) comes back to the bit on as many ranks, on others as the
/// mean of all.
/// save(), load() and wait() are collective; an Error is the same on all ranks and names the rank
/// that failed, and then nothing was changed: neither the tensors nor the checkpoints that were
/// there. Used by one thread.
class CheckpointFolder {
 public:
  /// The Communicator must outlive it. `folder` is made by the first save; where it is a plain
  /// safetensors file it can be loaded only. Throws Error(invalid_argument) for keep below 1.
  CheckpointFolder(Communicator& comm, std::string folder, const CheckpointOptions& options = {});
  /// Waits for what save_in_background() began.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  /// Tensors may live on devices; those are copied into the memory of snapshots first. `words`:
  /// whatever else is to come back, UTF-8 and equal on all ranks: positions of samplers,
  /// states of random generators. Throws Error(invalid_argument | mismatch) where ranks name other
  /// tensors, Error(io) where a rank could not write, or another process writes there.
  void save(int64_t step, const std::vector<PlacedTensor>& tensors,
            const std::map<std::string, std::string>& words = {});
  /// The same of a snapshot, which is taken before it returns: a copy of what this rank will write.
  /// A thread writes it, and asks the other ranks whether they save the same; the caller waits for
  /// none of them. If the system gives this process no thread, it writes before it returns.
  /// Throws what the one before threw. The snapshot's memory is kept for the next one.
  void save_in_background(int64_t step, const std::vector<PlacedTensor>& tensors,
                          const std::map<std::string, std::string>& words = {});
  /// Until what was begun in the background is whole; throws what it threw.
  void wait();

  /// Into the given tensors, each rank what its placement says. Nothing where no checkpoint is.
  /// Throws Error(corrupt_data) where it is of another model or damaged, Error(io) where a rank
  /// cannot read. Holds a second copy of the tensors until every rank has read its own.
  std::optional<LoadedCheckpoint> load(const std::vector<PlacedTensor>& tensors,
                                       const LoadOptions& options = {});

  CheckpointStatistics statistics() const { return statistics_; }  // so far

  /// Of the whole checkpoints there are, ascending, as this rank sees the folder.
  std::vector<int64_t> steps() const;

 private:
  struct Saving;
  struct Draft;
  using Texts = std::vector<std::string>;

  std::string plan_of(int64_t step, const std::vector<PlacedTensor>& tensors,
                      const std::map<std::string, std::string>& words) const;
  Saving prepare(int64_t step, const std::vector<PlacedTensor>& tensors,
                 const std::map<std::string, std::string>& words);
  void take_snapshot(Saving& saving, bool of_all);
  void agree_on_plan(const Saving& saving);
  void write(const Saving& saving);
  void note_saved(Clock::time_point begin) {
    ++statistics_.saves;
    statistics_.held_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  std::string write_pieces(const Saving& saving, const std::string& draft) const;
  void finish(const Saving& saving, const Texts& reports, const std::string& draft) const;
  void remove_old() const;
  void remove_drafts() const;
  std::string choose(const LoadOptions& options) const;
  void settle_replaced() const;
  std::string place_of(int64_t step) const;
  std::string old_place_of(int64_t step) const;
  std::string replaced_place_of(int64_t step) const;
  /// What `work` says on each rank, on every rank; where it throws on one, an Error that names that
  /// rank on all.
  Texts agree(const std::string& phase, const std::function<std::string()>& work);

  Communicator& comm_;
  const std::string folder_;
  const CheckpointOptions options_;
  int64_t agreements_ = 0;
  CheckpointStatistics statistics_;
  std::vector<std::byte> snapshot_;  // kept from save to save: its pages are there
  std::future<void> background_;     // last, so that it ends before what it reads
};

}  // namespace tutti
