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

/// As AttentionShape.
struct Heads {
  int64_t batch, heads, length, width;
  float scale;  // 1 / sqrt(width)
  bool is_causal;
  int64_t rows() const { return batch * heads * length; }
};

/// A row of a head: a block's query or key, and where in [batch, length, 3 * heads * width] and in
/// [batch, length, heads * width] its head begins.
struct HeadRow {
  int64_t row, width, features, packed, output;
  TUTTI_DEVICE HeadRow(const Heads& s, int64_t block) {
    // Of 32 bits, as a grid is: wider divisions are calls.
    const auto length = static_cast<int32_t>(s.length), heads = static_cast<int32_t>(s.heads);
    const int32_t head = static_cast<int32_t>(block) / length;
    row = static_cast<int32_t>(block) % length;
    width = s.width;
    features = s.heads * s.width;
    output = head / heads * s.length * features + head % heads * s.width;
    packed = head / heads * s.length * 3 * features + head % heads * s.width;
  }
  TUTTI_DEVICE int64_t query(int64_t at) const { return packed + at * 3 * features; }
  TUTTI_DEVICE int64_t key(int64_t at) const { return query(at) + features; }
  TUTTI_DEVICE int64_t value(int64_t at) const { return query(at) + 2 * features; }
  TUTTI_DEVICE int64_t out(int64_t at) const { return output + at * features; }
};

inline constexpr int64_t kMostLength = 4096;     // of sequences: their scores are shared by a block
inline constexpr int64_t kMostWidth = kThreads;  // of heads

template <class T>
TUTTI_DEVICE float dot(const T* a, const T* b, int64_t width) {
  float sum = 0;
  for (int64_t d = 0; d < width; ++d) sum += value_at(a, d) * value_at(b, d);
  return sum;
}

/// A block has a query of a head.
template <class T>
struct AttentionForward {
  struct Shared {
    float scores[kMostLength];
    float largest[kThreads];
    double sums[kThreads];
  };
  static constexpr int kPhases = 2 * (1 + kHalves) + 1;
  Heads shape;
  const T* packed;
  T* output;
  float* log_sums;
  int64_t blocks() const { return shape.rows(); }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase > 0 && phase <= kHalves) return greater_half(shared.largest, thread, phase);
    if (phase > kHalves + 1 && phase <= 2 * kHalves + 1)
      return add_half(shared.sums, thread, phase - kHalves - 1);
    const HeadRow at(shape, block);
    const int64_t seen = shape.is_causal ? at.row + 1 : shape.length;
    if (phase == 0) {
      const T* query = packed + at.query(at.row);
      float most = -std::numeric_limits<float>::infinity();
      for (int64_t key = thread; key < seen; key += kThreads) {
        const float score = shape.scale * dot(query, packed + at.key(key), shape.width);
        shared.scores[key] = score;
        if (score > most || score != score) most = score;
      }
      shared.largest[thread] = most;
    } else if (phase == kHalves + 1) {
      double sum = 0;
      for (int64_t key = thread; key < seen; key += kThreads) {
        const float share = std::exp(shared.scores[key] - shared.largest[0]);
        shared.scores[key] = share;
        sum += static_cast<double>(share);
      }
      shared.sums[thread] = sum;
    } else {
      if (thread == 0)
        log_sums[block] = shared.largest[0] + static_cast<float>(std::log(shared.sums[0]));
      if (thread >= shape.width) return;
      const auto inverse = static_cast<float>(1 / shared.sums[0]);
      const T* value = packed + at.value(0) + thread;
      float sum = 0;
      for (int64_t key = 0; key < seen; ++key, value += 3 * at.features)
        sum += shared.scores[key] * inverse * value_at(value, 0);
      store_at(output, at.out(at.row) + thread, sum);
    }
  }
};

/// What backward reads. With P the softmax, O = P V and D = rowsum(dO O): dV = P^T dO,
/// dS = P (dO V^T - D), dQ = scale dS K, dK = scale dS^T Q (Dao et al. 2022).
template <class T>
struct AttentionGradients {
  Heads shape;
  const T* packed;
  const T* output;
  const float* log_sums;  // [batch, heads, length]
  const T* output_gradient;
  T* packed_gradient;

  struct Slope {
    float share, slope;  // P, dS
  };
  TUTTI_DEVICE Slope slope(const HeadRow& at, const float* logs, int64_t query, int64_t key) const {
    const int64_t out = at.out(query);
    const float score =
        shape.scale * dot(packed + at.query(query), packed + at.key(key), shape.width);
    const float share = std::exp(score - logs[query]);
    const float base = dot(output + out, output_gradient + out, shape.width);
    const float product = dot(output_gradient + out, packed + at.value(key), shape.width);
    return {share, share * (product - base)};
  }
};

/// dQ: a block has a query.
template <class T>
struct AttentionBackwardQueries : AttentionGradients<T> {
  struct Shared {
    float slopes[kMostLength];
  };
  static constexpr int kPhases = 2;
  int64_t blocks() const { return this->shape.rows(); }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const auto& s = this->shape;
    const HeadRow at(s, block);
    const int64_t seen = s.is_causal ? at.row + 1 : s.length;
    if (phase == 0) {
      const float* logs = this->log_sums + block - at.row;
      for (int64_t key = thread; key < seen; key += kThreads)
        shared.slopes[key] = this->slope(at, logs, at.row, key).slope;
    } else if (thread < s.width) {
      const T* keys = this->packed + at.key(0) + thread;
      float sum = 0;
      for (int64_t key = 0; key < seen; ++key, keys += 3 * at.features)
        sum += shared.slopes[key] * value_at(keys, 0);
      store_at(this->packed_gradient, at.query(at.row) + thread, s.scale * sum);
    }
  }
};

/// dK and dV: a block has a key.
template <class T>
struct AttentionBackwardKeys : AttentionGradients<T> {
  struct Shared {
    float slopes[kMostLength], shares[kMostLength];
  };
  static constexpr int kPhases = 2;
  int64_t blocks() const { return this->shape.rows(); }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const auto& s = this->shape;
    const HeadRow at(s, block);
    const int64_t first = s.is_causal ? at.row : 0;
    if (phase == 0) {
      const float* logs = this->log_sums + block - at.row;
      for (int64_t query = first + thread; query < s.length; query += kThreads) {
        const auto both = this->slope(at, logs, query, at.row);
        shared.shares[query] = both.share;
        shared.slopes[query] = both.slope;
      }
    } else if (thread < s.width) {
      const T* queries = this->packed + at.query(first) + thread;
      const T* gradients = this->output_gradient + at.out(first) + thread;
      float keys = 0, values = 0;
      for (int64_t query = first; query < s.length; ++query) {
        keys += shared.slopes[query] * value_at(queries, 0);
        values += shared.shares[query] * value_at(gradients, 0);
        queries += 3 * at.features;
        gradients += at.features;
      }
      store_at(this->packed_gradient, at.key(at.row) + thread, s.scale * keys);
      store_at(this->packed_gradient, at.value(at.row) + thread, values);
    }
  }
};

}  // namespace tutti::cuda
