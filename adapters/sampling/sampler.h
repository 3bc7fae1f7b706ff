#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// Returns the numbers 0 to count - 1 in an order that follows from seed and epoch alone, on every
/// machine (Fisher and Yates, by the counter-based numbers of random_order()).
std::vector<int64_t> permutation(int64_t count, uint64_t seed, int64_t epoch);

/// The version of permutation()'s order, for states that are saved within an epoch. Order 1 was
/// drawn by a Mersenne Twister, and order 2 is drawn by counters.
inline constexpr int64_t kSampleOrder = 2;
/// Throws Error(corrupt_data), which names `who`, if a saved state is within a shuffled epoch and
/// was made with another sample order than this version has. Between epochs and without a shuffle
/// the order does not matter.
void require_sample_order(const char* who, int64_t order, bool is_within_an_epoch);

/// Selects the order of the samples. It must be equal on all ranks.
struct SamplerOptions {
  uint64_t seed = 1;    // seed of the shuffles
  bool shuffle = true;  // a different order in each epoch; false: 0, 1, 2...
};

/// Deals the samples of an epoch to the ranks. Its state is the number of samples that all ranks
/// together have consumed, so a job can continue with it on any number of ranks. Within an epoch
/// each sample is dealt once. The class sends no message and uses no thread of its own. One thread
/// uses it.
class Sampler {
 public:
  /// Throws Error(invalid_argument) for less than one sample.
  Sampler(int64_t samples, const SamplerOptions& options = {});

  /// Returns this rank's samples of the next step, in which each of `size` ranks takes `batch`
  /// samples, rank after rank. The last step of an epoch deals the remaining samples in shares that
  /// differ by at most one. A rank may then get fewer samples than others, or none, so weigh its
  /// gradient by its samples. Throws Error(invalid_argument) for a batch below 1, or a rank that is
  /// out of range.
  std::vector<int64_t> take(int64_t batch, int rank, int size);
  int64_t left() const { return samples_ - consumed_; }  // samples left in this epoch
  int64_t epoch() const { return epoch_; }               // counted from 0
  int64_t consumed() const { return consumed_; }         // in this epoch, by all ranks together
  // Begins the next epoch with its first sample, even if this epoch has samples left.
  void next_epoch();

  /// Returns the state as a text for the `words` of a checkpoint: "epoch 2 consumed 640 of 8000
  /// seed 1 order 2".
  std::string state() const;
  /// Continues from a state. Throws Error(corrupt_data), which says what was expected, if the text
  /// is not a state, or if it has another number of samples, another seed or, within an epoch,
  /// another order. Then nothing was changed.
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
