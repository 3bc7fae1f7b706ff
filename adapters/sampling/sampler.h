#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// The numbers 0 to count - 1 in an order that follows from seed and epoch alone, on every machine
/// (Fisher and Yates, by the counter-based numbers of random_order()).
std::vector<int64_t> permutation(int64_t count, uint64_t seed, int64_t epoch);

/// Which order permutation() makes, for what is saved within an epoch: 1 was drawn by a Mersenne
/// Twister, 2 is by counters.
inline constexpr int64_t kSampleOrder = 2;
/// Throws Error(corrupt_data) that names `who` if a state of another order is in the middle of a
/// shuffled epoch. Between epochs and without a shuffle any order will do.
void require_sample_order(const char* who, int64_t order, bool is_within_an_epoch);

/// In which order samples are taken; equal on all ranks.
struct SamplerOptions {
  uint64_t seed = 1;    // of the shuffles
  bool shuffle = true;  // anew in each epoch; otherwise 0, 1, 2...
};

/// Deals the samples of an epoch to the ranks. Its state is what was consumed, of all ranks
/// together, so a job goes on with it on any number of ranks: within an epoch no sample comes twice
/// and none is lost. Pure: no message, no thread. Used by one thread.
class Sampler {
 public:
  /// Throws Error(invalid_argument) for less than one sample.
  Sampler(int64_t samples, const SamplerOptions& options = {});

  /// This rank's samples of the next step, in which each of `size` ranks takes `batch` of them,
  /// rank after rank. The last step of an epoch deals what is left in shares that differ by one at
  /// most: a rank may get fewer than the others, or none, so weigh its gradient by its samples.
  /// Throws Error(invalid_argument) for a batch below 1 or a rank that is none.
  std::vector<int64_t> take(int64_t batch, int rank, int size);
  int64_t left() const { return samples_ - consumed_; }  // in this epoch
  int64_t epoch() const { return epoch_; }               // from 0
  int64_t consumed() const { return consumed_; }         // in this epoch, by all ranks together
  void next_epoch();  // which begins with its first sample, whatever is left of this one

  /// "epoch 2 consumed 640 of 8000 seed 1 order 2": for the words of a checkpoint.
  std::string state() const;
  /// Goes on from there. Throws Error(corrupt_data) that names what was expected where it is no
  /// such text, of another number of samples, another seed, or, within an epoch, of another order;
  /// then nothing was changed.
  void restore(const std::string& state);

 private:
  const int64_t samples_;
  const SamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t consumed_ = 0;
  int64_t ordered_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace tutti
