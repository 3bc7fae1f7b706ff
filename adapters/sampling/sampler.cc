#include "tutti/adapters/sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

std::vector<int64_t> permutation(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::mt19937_64 generator(seed * 1'000'003 + static_cast<uint64_t>(epoch));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator() % i]);
  return order;
}

Sampler::Sampler(int64_t samples, const SamplerOptions& options)
    : samples_(samples), options_(options) {
  if (samples < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Sampler: {} samples, want at least 1", samples));
}

std::vector<int64_t> Sampler::take(int64_t batch, int rank, int size) {
  if (batch < 1 || rank < 0 || rank >= size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Sampler: batches of {} for rank {} of {}, want at least 1 for one of "
                            "the ranks",
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
  return fmt::format("epoch {} consumed {} of {} seed {}", epoch_, consumed_, samples_,
                     options_.seed);
}

void Sampler::restore(const std::string& state) {
  const auto words = split_text(state, ' ');
  constexpr int64_t kMost = int64_t{1} << 62;
  std::optional<int64_t> epoch, consumed;
  if (words.size() == 8 && words[0] == "epoch" && words[2] == "consumed") {
    epoch = parse_integer(words[1], 0, kMost);
    consumed = parse_integer(words[3], 0, samples_);
  }
  const auto expected = fmt::format(" of {} seed {}", samples_, options_.seed);
  if (!epoch || !consumed || !state.ends_with(expected))
    throw Error(ErrorCode::corrupt_data,
                fmt::format("Sampler: cannot go on from \"{:.100}\", expected \"epoch E consumed "
                            "C{}\" with C up to {}; load the same data with the same seed",
                            state, expected, samples_));
  epoch_ = *epoch;
  consumed_ = *consumed;
}

}  // namespace tutti
