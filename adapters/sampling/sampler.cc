#include "tutti/adapters/sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/kernels/counter_random.h"

namespace tutti {

std::vector<int64_t> permutation(int64_t count, uint64_t seed, int64_t epoch) {
  // The step of a RandomKey has 32 bits, so the upper half of the epoch's number selects another
  // purpose. Training never reaches epochs that need the upper half.
  const auto bits = static_cast<uint64_t>(epoch);
  const auto upper = static_cast<uint32_t>(bits >> 32);
  return random_order({.seed = seed,
                       .purpose = random_purpose("shuffle") + upper,
                       .step = static_cast<uint32_t>(bits)},
                      count);
}

void require_sample_order(const char* who, int64_t order, bool is_within_an_epoch) {
  if (order == kSampleOrder || !is_within_an_epoch) return;
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format(
          "{}: the saved epoch has the samples in order {}, but this version uses order {}, so "
          "some samples would come twice and others never; continue from the beginning of an epoch",
          who, order, kSampleOrder));
}

Sampler::Sampler(int64_t samples, const SamplerOptions& options)
    : samples_(samples), options_(options) {
  if (samples < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Sampler: {} samples, expected at least 1", samples));
}

std::vector<int64_t> Sampler::take(int64_t batch, int rank, int size) {
  if (batch < 1 || rank < 0 || rank >= size)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "Sampler: batches of {} for rank {} of {}, expected at least 1 for one of the ranks",
            batch, rank, size));
  if (options_.shuffle && ordered_epoch_ != epoch_) {
    order_ = permutation(samples_, options_.seed, epoch_);
    ordered_epoch_ = epoch_;
  }
  const int64_t dealt = batch > left() / size ? left() : batch * size;
  const int64_t each = dealt / size, rest = dealt % size;
  const int64_t begin = consumed_ + rank * each + std::min<int64_t>(rank, rest);
  std::vector<int64_t> samples(static_cast<size_t>(each + (rank < rest ? 1 : 0)));
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    samples[i] = options_.shuffle ? order_[static_cast<size_t>(at)] : at;
  }
  consumed_ += dealt;
  return samples;
}

void Sampler::next_epoch() {
  ++epoch_;
  consumed_ = 0;
}

std::string Sampler::state() const {
  return fmt::format("epoch {} consumed {} of {} seed {} order {}", epoch_, consumed_, samples_,
                     options_.seed, kSampleOrder);
}

void Sampler::restore(const std::string& state) {
  const auto words = split_text(state, ' ');
  constexpr int64_t kMost = int64_t{1} << 62;
  std::optional<int64_t> epoch, consumed;
  if ((words.size() == 8 || words.size() == 10) && words[0] == "epoch" && words[2] == "consumed") {
    epoch = parse_integer(words[1], 0, kMost);
    consumed = parse_integer(words[3], 0, samples_);
  }
  const auto expected = fmt::format(" of {} seed {}", samples_, options_.seed);
  const auto order = fmt::format(" order {}", kSampleOrder);
  // States of version 1 do not contain the order.
  const bool is_first_version = state.ends_with(expected);
  if (!epoch || !consumed || (!is_first_version && !state.ends_with(expected + order)))
    throw Error(ErrorCode::corrupt_data,
                fmt::format("Sampler: cannot go on from \"{:.100}\", expected \"epoch E consumed "
                            "C{}{}\" with C up to {}; load the same data with the same seed",
                            state, expected, order, samples_));
  if (is_first_version) require_sample_order("Sampler", 1, options_.shuffle && *consumed > 0);
  epoch_ = *epoch;
  consumed_ = *consumed;
}

}  // namespace tutti
