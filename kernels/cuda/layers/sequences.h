#pragma once

// Embeddings and attention.

#include "tutti/kernels/cuda/layers/elements.h"
#include "tutti/kernels/cuda/layers/kernel.h"

namespace tutti::cuda {

/// output[i] = table[indices[i]]; an index outside of the table makes a row of NaN.
template <class T>
struct EmbeddingForward : ElementKernel {
  int64_t rows, features;
  const int64_t* indices;
  const float* table;
  T* output;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t i) {
      const int64_t row = indices[i / features];
      store_at(output, i,
               row < 0 || row >= rows ? std::numeric_limits<float>::quiet_NaN()
                                      : table[row * features + i % features]);
    });
  }
};

/// A block has a row of the table. Its threads look for it in a part of the indices each; then what
/// was found is added in the order of the indices.
template <class T>
struct EmbeddingBackward {
  struct Shared {
    int32_t found[kThreads];
  };
  static constexpr int kPhases = 2;
  int64_t rows, features, count;
  const int64_t* indices;
  const T* output_gradient;
  float* table_gradient;
  int64_t blocks() const { return count == 0 ? 0 : rows; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const int64_t part = blocks_for(count, kThreads);
    if (phase == 0) {
      int32_t found = 0;
      for (int64_t i = thread * part; i < (thread + 1) * part && i < count; ++i)
        found += indices[i] == block ? 1 : 0;
      shared.found[thread] = found;
      return;
    }
    for (int64_t feature = thread; feature < features; feature += kThreads) {
      float* to = table_gradient + block * features + feature;
      float sum = *to;
      for (int64_t other = 0; other < kThreads; ++other) {
        if (shared.found[other] == 0) continue;
        for (int64_t i = other * part; i < (other + 1) * part && i < count; ++i)
          if (indices[i] == block) sum += value_at(output_gradient, i * features + feature);
      }
      *to = sum;
    }
  }
};

// --- attention: what stands between its products of matrices ---------------------------------------

/// Scores of queries and keys, [matrices, length, pitch] of which a row has `length`. A block has some
/// rows, and a row has the lanes of a warp.
struct ScoreRows {
  static constexpr int kLanes = 32, kOfBlock = kThreads / kLanes;
  static constexpr int kHalvings = 5;  // of the lanes

  int64_t matrices, length, pitch;
  int64_t between;  // logarithms from one matrix to the next
  float scale;
  bool is_causal;

  struct At {
    bool is_there;
    int lane;
    int64_t first, log;  // where the row begins in the scores, and its logarithm
    int64_t seen;        // keys
  };
  int64_t blocks() const { return blocks_for(matrices * length, kOfBlock); }
  TUTTI_DEVICE At at(int64_t block, int thread) const {
    // Of 32 bits, as a grid is: wider divisions are calls.
    const auto row = static_cast<int32_t>(block * kOfBlock + thread / kLanes);
    const auto rows = static_cast<int32_t>(length);
    const int32_t matrix = row / rows, query = row % rows;
    return {row < matrices * length, thread % kLanes, row * pitch, matrix * between + query,
            is_causal ? int64_t{query} + 1 : length};
  }
};

/// Adds, or finds the largest of, what the lanes of each row have; the first lane has the result.
/// `halving` counts from 1.
TUTTI_DEVICE void add_lanes(float* all, int thread, int halving) {
  const int count = ScoreRows::kLanes >> halving;
  if (thread % ScoreRows::kLanes < count) all[thread] += all[thread + count];
}
TUTTI_DEVICE void greater_lanes(float* all, int thread, int halving) {
  const int count = ScoreRows::kLanes >> halving;
  // NaN is larger than all, so that it is not lost.
  if (thread % ScoreRows::kLanes < count && !(all[thread + count] <= all[thread]) &&
      all[thread] == all[thread])
    all[thread] = all[thread + count];
}

/// shares = softmax(scale * scores) of what each query sees, 0 elsewhere.
template <class T>
struct AttentionShares {
  static constexpr int kHalvings = ScoreRows::kHalvings;
  struct Shared {
    float largest[kThreads], sums[kThreads];
  };
  static constexpr int kPhases = 2 * (1 + kHalvings) + 1;
  ScoreRows rows;
  const float* scores;
  T* shares;
  float* logs;
  int64_t blocks() const { return rows.blocks(); }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase > 0 && phase <= kHalvings) return greater_lanes(shared.largest, thread, phase);
    if (phase > kHalvings + 1 && phase <= 2 * kHalvings + 1)
      return add_lanes(shared.sums, thread, phase - kHalvings - 1);
    const auto at = rows.at(block, thread);
    if (!at.is_there) return;
    const float* row = scores + at.first;
    if (phase == 0) {
      float most = -std::numeric_limits<float>::infinity();
      for (int64_t key = at.lane; key < at.seen; key += ScoreRows::kLanes) {
        const float score = rows.scale * row[key];
        if (score > most || score != score) most = score;
      }
      shared.largest[thread] = most;
      return;
    }
    const float most = shared.largest[thread - at.lane];
    if (phase == kHalvings + 1) {
      float sum = 0;
      for (int64_t key = at.lane; key < at.seen; key += ScoreRows::kLanes)
        sum += std::exp(rows.scale * row[key] - most);
      shared.sums[thread] = sum;
      return;
    }
    const float log = most + std::log(shared.sums[thread - at.lane]);
    if (at.lane == 0) logs[at.log] = log;
    for (int64_t key = at.lane; key < rows.length; key += ScoreRows::kLanes)
      store_at(shares + at.first, key,
               key < at.seen ? std::exp(rows.scale * row[key] - log) : 0.0f);
  }
};

/// With P the softmax and dP its gradient, slopes = scale * P (dP - rowsum(P dP)), the gradient of
/// Q K^T; and P once more, as `shares`.
template <class T>
struct AttentionSlopes {
  static constexpr int kHalvings = ScoreRows::kHalvings;
  struct Shared {
    float sums[kThreads];
  };
  static constexpr int kPhases = kHalvings + 2;
  ScoreRows rows;
  const float* scores;
  const float* gradients;
  const float* logs;
  T* shares;
  T* slopes;
  int64_t blocks() const { return rows.blocks(); }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase > 0 && phase <= kHalvings) return add_lanes(shared.sums, thread, phase);
    const auto at = rows.at(block, thread);
    if (!at.is_there) return;
    const float* row = scores + at.first;
    const float* gradient = gradients + at.first;
    const float log = logs[at.log];
    if (phase == 0) {
      float sum = 0;
      for (int64_t key = at.lane; key < at.seen; key += ScoreRows::kLanes)
        sum += std::exp(rows.scale * row[key] - log) * gradient[key];
      shared.sums[thread] = sum;
      return;
    }
    const float base = shared.sums[thread - at.lane];
    for (int64_t key = at.lane; key < rows.length; key += ScoreRows::kLanes) {
      const float share = key < at.seen ? std::exp(rows.scale * row[key] - log) : 0.0f;
      store_at(shares + at.first, key, share);
      store_at(slopes + at.first, key,
               key < at.seen ? rows.scale * share * (gradient[key] - base) : 0.0f);
    }
  }
};

}  // namespace tutti::cuda
