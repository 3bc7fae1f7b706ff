#pragma once

// Embeddings and attention.

#include "tutti/adapters/nn/kernels/cuda/layers/elements.h"
#include "tutti/adapters/nn/kernels/cuda/layers/kernel.h"

namespace tutti::cuda {

/// output[i] = table[indices[i]]; an index outside of the table gives a row of NaN.
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

/// Each block handles one index. If no earlier index equals it, the block adds the gradients of all
/// equal indices, in their order. Each thread searches a part of the indices.
template <class T>
struct EmbeddingBackward {
  struct Shared {
    bool is_later[kThreads];
    int32_t found[kThreads];
  };
  static constexpr int kPhases = 3;
  int64_t rows, features, count;
  const int64_t* indices;
  const T* output_gradient;
  float* table_gradient;
  int64_t blocks() const { return count; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const int64_t row = indices[block], part = blocks_for(count, kThreads);
    if (row < 0 || row >= rows) return;
    if (phase == 0) {
      bool is_later = false;
      for (int64_t i = thread; i < block && !is_later; i += kThreads) is_later = indices[i] == row;
      shared.is_later[thread] = is_later;
    } else if (phase == 1) {
      int32_t found = 0;
      for (int other = 0; other < kThreads && found == 0; ++other)
        found = shared.is_later[other] ? -1 : 0;
      if (found == 0)
        for (int64_t i = thread * part > block ? thread * part : block;
             i < (thread + 1) * part && i < count; ++i)
          found += indices[i] == row ? 1 : 0;
      shared.found[thread] = found;
    } else if (shared.found[thread] >= 0) {
      for (int64_t feature = thread; feature < features; feature += kThreads) {
        float* to = table_gradient + row * features + feature;
        float sum = *to;
        for (int64_t other = 0; other < kThreads; ++other) {
          if (shared.found[other] == 0) continue;
          for (int64_t i = other * part > block ? other * part : block;
               i < (other + 1) * part && i < count; ++i)
            if (indices[i] == row) sum += value_at(output_gradient, i * features + feature);
        }
        *to = sum;
      }
    }
  }
};

// --- attention: the kernels between its products of matrices -------------------------------------

/// Scores of queries and keys [matrices, length, pitch]. Each row uses `length` of its `pitch`
/// elements.
struct ScoreRows {
  int64_t matrices, length, pitch;
  int64_t between;  // elements of `logs` from one matrix to the next
  float scale;
  bool is_causal;

  struct At {
    bool is_there;
    int lane;
    int64_t first, log;  // offsets of the row in the scores and of its entry in `logs`
    int64_t seen;        // number of keys that the query sees
  };
  int64_t blocks() const { return blocks_for(matrices * length, kRowsOfBlock); }
  TUTTI_DEVICE At at(int64_t block, int thread) const {
    // 32 bits suffice, because a grid has fewer than 2^31 blocks. Wider divisions would be function
    // calls.
    const auto row = static_cast<int32_t>(block * kRowsOfBlock + thread / kLanes);
    const auto rows = static_cast<int32_t>(length);
    const int32_t matrix = row / rows, query = row % rows;
    return {row < matrices * length, thread % kLanes, row * pitch, matrix * between + query,
            is_causal ? int64_t{query} + 1 : length};
  }
};

/// shares = softmax(scale * scores) over the keys that each query sees, and 0 elsewhere.
template <class T>
struct AttentionShares {
  struct Shared {
    float largest[kThreads], sums[kThreads];
  };
  static constexpr int kPhases = 2 * (1 + kLaneHalves) + 1;
  ScoreRows rows;
  const float* scores;
  T* shares;
  float* logs;
  int64_t blocks() const { return rows.blocks(); }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase > 0 && phase <= kLaneHalves) return greater_lanes(shared.largest, thread, phase);
    if (phase > kLaneHalves + 1 && phase <= 2 * kLaneHalves + 1)
      return add_lanes(shared.sums, thread, phase - kLaneHalves - 1);
    const auto at = rows.at(block, thread);
    if (!at.is_there) return;
    const float* row = scores + at.first;
    if (phase == 0) {
      float most = -std::numeric_limits<float>::infinity();
      for (int64_t key = at.lane; key < at.seen; key += kLanes) {
        const float score = rows.scale * row[key];
        if (score > most || score != score) most = score;
      }
      shared.largest[thread] = most;
      return;
    }
    const float most = shared.largest[thread - at.lane];
    if (phase == kLaneHalves + 1) {
      float sum = 0;
      for (int64_t key = at.lane; key < at.seen; key += kLanes)
        sum += std::exp(rows.scale * row[key] - most);
      shared.sums[thread] = sum;
      return;
    }
    const float log = most + std::log(shared.sums[thread - at.lane]);
    if (at.lane == 0) logs[at.log] = log;
    for (int64_t key = at.lane; key < rows.length; key += kLanes)
      store_at(shares + at.first, key,
               key < at.seen ? std::exp(rows.scale * row[key] - log) : 0.0f);
  }
};

/// P is the softmax and dP its gradient. Computes P again, as `shares`, and slopes = scale * P (dP
/// - rowsum(P dP)), the gradient of Q K^T.
template <class T>
struct AttentionSlopes {
  struct Shared {
    float sums[kThreads];
  };
  static constexpr int kPhases = kLaneHalves + 2;
  ScoreRows rows;
  const float* scores;
  const float* gradients;
  const float* logs;
  T* shares;
  T* slopes;
  int64_t blocks() const { return rows.blocks(); }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase > 0 && phase <= kLaneHalves) return add_lanes(shared.sums, thread, phase);
    const auto at = rows.at(block, thread);
    if (!at.is_there) return;
    const float* row = scores + at.first;
    const float* gradient = gradients + at.first;
    const float log = logs[at.log];
    if (phase == 0) {
      float sum = 0;
      for (int64_t key = at.lane; key < at.seen; key += kLanes)
        sum += std::exp(rows.scale * row[key] - log) * gradient[key];
      shared.sums[thread] = sum;
      return;
    }
    const float base = shared.sums[thread - at.lane];
    for (int64_t key = at.lane; key < rows.length; key += kLanes) {
      const float share = key < at.seen ? std::exp(rows.scale * row[key] - log) : 0.0f;
      store_at(shares + at.first, key, share);
      store_at(slopes + at.first, key,
               key < at.seen ? rows.scale * share * (gradient[key] - base) : 0.0f);
    }
  }
};

}  // namespace tutti::cuda
