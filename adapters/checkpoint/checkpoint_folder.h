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

/// Options of a folder of checkpoints.
struct CheckpointOptions {
  int keep = 2;  // number of whole checkpoints; older ones are removed when a newer one is whole
};

/// Selects the checkpoint to load, and says whether it may be loaded partly.
struct LoadOptions {
  std::optional<int64_t> step = std::nullopt;  // none: the newest whole checkpoint
  bool partly = false;  // the checkpoint may hold tensors that are not loaded
  /// load() calls this with LoadedCheckpoint::words before it changes any tensor. If the function
  /// throws, load() throws that error on all ranks.
  std::function<void(const std::map<std::string, std::string>& words)> check = {};
};

/// The cost of saving on this rank so far.
struct CheckpointStatistics {
  int64_t saves = 0;  // saves that ended, or that began in the background
  int64_t bytes = 0;  // bytes of the tensors that this rank had to write, failed saves included
  double held_seconds = 0;  // time that callers waited for save() or save_in_background()
};

/// The contents of a loaded checkpoint beside its tensors.
struct LoadedCheckpoint {
  int64_t step = 0;                          // the step that save() was given
  int members = 0;                           // ranks that wrote it; 1 for a single file
  std::map<std::string, std::string> words;  // the `words` that save() was given
};

/// Checkpoints of a job in a folder that all its ranks can access. "step-12" holds one safetensors
/// file per rank and manifest.json. Each rank writes the tensors that it alone holds, and its share
/// of those that all ranks hold. A checkpoint is written to the disk under a draft's name and then
/// renamed, so a checkpoint with its own name is always whole, even if the job is killed. It can be
/// loaded on any number of ranks and into any placement. Tensors of which each rank has its own
/// (Held::own) are restored bit for bit on the same number of ranks; on another number each rank
/// gets the mean of all.
/// save(), load() and wait() are collective. An Error is the same on all ranks and names the rank
/// that failed. Then nothing was changed, neither the tensors nor the existing checkpoints. One
/// thread uses it.
class CheckpointFolder {
 public:
  /// The Communicator must outlive this object. The first save makes `folder`. If `folder` is a
  /// plain safetensors file, it can only be loaded. Throws Error(invalid_argument) for keep below
  /// 1.
  CheckpointFolder(Communicator& comm, std::string folder, const CheckpointOptions& options = {});
  /// Waits for a save in the background.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  /// Saves a checkpoint. Tensors may be on devices; these are first copied into host memory.
  /// `words` are other data to restore, such as positions of samplers and states of random
  /// generators. They are UTF-8 and equal on all ranks. Throws Error(invalid_argument) or
  /// Error(mismatch) if the ranks' tensors differ, and Error(io) if a rank could not write or
  /// another process writes into the folder.
  void save(int64_t step, const std::vector<PlacedTensor>& tensors,
            const std::map<std::string, std::string>& words = {});
  /// Like save(), but returns after copying what this rank will write, the snapshot. A thread
  /// writes the snapshot and checks that the other ranks save the same, so the caller does not wait
  /// for them. If the system has no thread for this process, the checkpoint is written before this
  /// returns. Throws the error of the previous save in the background. The snapshot's memory is
  /// kept for the next one.
  void save_in_background(int64_t step, const std::vector<PlacedTensor>& tensors,
                          const std::map<std::string, std::string>& words = {});
  /// Waits until the save in the background is over, and throws its error.
  void wait();

  /// Loads a checkpoint into the given tensors; each rank gets the elements that its placement
  /// names. Returns nothing if there is no checkpoint. Throws Error(corrupt_data) if the checkpoint
  /// is damaged or of another model, and Error(io) if a rank cannot read it. Holds a second copy of
  /// the tensors until every rank has read its own.
  std::optional<LoadedCheckpoint> load(const std::vector<PlacedTensor>& tensors,
                                       const LoadOptions& options = {});

  CheckpointStatistics statistics() const { return statistics_; }  // so far

  /// Returns the steps of the whole checkpoints in ascending order, as this rank sees the folder.
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
  /// Runs `work` on each rank and returns the texts of all ranks. If `work` throws on a rank, all
  /// ranks throw an Error that names that rank.
  Texts agree(const std::string& phase, const std::function<std::string()>& work);

  Communicator& comm_;
  const std::string folder_;
  const CheckpointOptions options_;
  int64_t agreements_ = 0;
  CheckpointStatistics statistics_;
  std::vector<std::byte> snapshot_;  // kept from save to save, so that its pages stay mapped
  std::future<void> background_;     // last, so that it ends before the members that it reads
};

}  // namespace tutti
