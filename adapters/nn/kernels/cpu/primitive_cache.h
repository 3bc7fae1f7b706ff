#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti {

/// Identifies what a primitive computes. The kind and the numbers of the shape are the primitive's
/// key.
enum class PrimitiveKind : int64_t {
  linear_forward,
  linear_backward_input,
  convolution_forward,
  convolution_backward_input,
  convolution_backward_weights,
  pooling_forward,
  pooling_backward,
  activation_forward,
  activation_backward,
  softmax_forward,
  softmax_backward,
};

/// Describes dense f32 memory.
inline dnnl::memory::desc dense(const dnnl::memory::dims& extents, dnnl::memory::format_tag tag) {
  return {extents, dnnl::memory::data_type::f32, tag};
}

/// Describes a log softmax over rows [rows, classes].
inline dnnl::logsoftmax_forward::primitive_desc log_softmax_desc(const dnnl::memory::desc& desc,
                                                                 const dnnl::engine& engine) {
  return {{dnnl::prop_kind::forward_training, desc, 1}, engine};
}

/// Caches oneDNN's primitives with their memory objects. Each is created once and runs on a fixed
/// number of threads. One thread at a time uses an object. Throws Error(internal) with oneDNN's own
/// text if oneDNN fails.
class PrimitiveCache {
 public:
  /// The kind of a primitive and the numbers of its shape.
  struct Key {
    PrimitiveKind kind;
    std::vector<int64_t> numbers;
    auto operator<=>(const Key&) const = default;
  };
  using Arguments = std::unordered_map<int, dnnl::memory>;
  /// An argument that the primitive wants in another layout than the caller's. `caller` is the
  /// caller's memory; the Entry's argument is memory of the cache.
  struct Conversion {
    int index;
    bool is_result;
    dnnl::reorder reorder;
    dnnl::memory caller;
  };
  /// Each run sets the data pointers of the memory objects.
  struct Entry {
    dnnl::primitive primitive;
    Arguments arguments;
    std::vector<Conversion> conversions = {};
  };
  /// An argument of a primitive, by its DNNL_ARG_ number. Although `data` is const, the primitive
  /// writes to it if the argument is a result.
  struct Argument {
    int index;
    const void* data;
  };

  /// Throws Error(invalid_argument) for fewer than 1 thread.
  explicit PrimitiveCache(int threads);
  int threads() const { return threads_; }

  /// Returns the entry of `key`. Calls `make` to create the entry if it does not exist. The address
  /// of an entry never changes.
  Entry& entry(const Key& key, const std::function<Entry(const dnnl::engine&)>& make);
  /// Returns memory objects for a primitive that is being created. They have no data yet.
  Arguments arguments(std::initializer_list<std::pair<int, dnnl::memory::desc>> descs) const;
  /// Adds an argument to a primitive that is being created. The primitive uses the layout `inside`,
  /// its callers use `outside`.
  void add(Entry& entry, int index, bool is_result, const dnnl::memory::desc& outside,
           const dnnl::memory::desc& inside) const;
  /// Runs a primitive; returns when its results are complete. Arguments that the primitive does not
  /// have are ignored.
  void run(Entry& entry, std::initializer_list<Argument> arguments);

  /// c[rows, columns] = factor * op(a)[rows, inner] * op(b)[inner, columns] + keep * c. Matrices
  /// are row-major with `step` elements between rows. op is 'N' (as is) or 'T' (transposed).
  void multiply(char op_a, char op_b, int64_t rows, int64_t columns, int64_t inner, float factor,
                const float* a, int64_t a_step, const float* b, int64_t b_step, float keep,
                float* c, int64_t c_step);

 private:
  /// Returns a buffer of `bytes` bytes for conversion number `place` of a run.
  void* converted(size_t place, size_t bytes);

  const int threads_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Entry> entries_;
  std::vector<dnnl::memory> converted_;  // buffers for the arguments of one run; they only grow
};

}  // namespace tutti
