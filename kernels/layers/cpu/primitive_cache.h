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

/// What a primitive computes; with the numbers of its shape it is its key.
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

/// f32 memory without gaps.
inline dnnl::memory::desc dense(const dnnl::memory::dims& extents, dnnl::memory::format_tag tag) {
  return {extents, dnnl::memory::data_type::f32, tag};
}

/// Of rows [rows, classes].
inline dnnl::logsoftmax_forward::primitive_desc log_softmax_desc(const dnnl::memory::desc& desc,
                                                                 const dnnl::engine& engine) {
  return {{dnnl::prop_kind::forward_training, desc, 1}, engine};
}

/// Primitives of oneDNN with their memory objects, each made once and run on a number of threads.
/// One thread at a time uses an object. Throws Error(internal) with oneDNN's own text if it
/// refuses.
class PrimitiveCache {
 public:
  /// What a primitive computes, and the numbers of its shape.
  struct Key {
    PrimitiveKind kind;
    std::vector<int64_t> numbers;
    auto operator<=>(const Key&) const = default;
  };
  using Arguments = std::unordered_map<int, dnnl::memory>;
  /// An argument that the primitive wants in another layout than the caller has it: `caller` is the
  /// caller's memory, and the Entry's argument one of the cache's own.
  struct Conversion {
    int index;
    bool is_result;
    dnnl::reorder reorder;
    dnnl::memory caller;
  };
  /// The memory objects' data pointers are set anew at each run.
  struct Entry {
    dnnl::primitive primitive;
    Arguments arguments;
    std::vector<Conversion> conversions = {};
  };
  /// An argument of a primitive by its DNNL_ARG_ number; what the primitive writes is not const.
  struct Argument {
    int index;
    const void* data;
  };

  /// Throws Error(invalid_argument) below 1 thread.
  explicit PrimitiveCache(int threads);
  int threads() const { return threads_; }

  /// What is there for `key`, or what `make` makes of it. It stays where it is.
  Entry& entry(const Key& key, const std::function<Entry(const dnnl::engine&)>& make);
  /// Memory objects of a primitive to be made, without data as yet.
  Arguments arguments(std::initializer_list<std::pair<int, dnnl::memory::desc>> descs) const;
  /// Adds an argument to a primitive to be made that wants `inside`, while callers have `outside`.
  void add(Entry& entry, int index, bool is_result, const dnnl::memory::desc& outside,
           const dnnl::memory::desc& inside) const;
  /// Returns when all is computed. Arguments that the primitive does not have are passed over.
  void run(Entry& entry, std::initializer_list<Argument> arguments);

  /// c[rows, columns] = factor * op(a)[rows, inner] * op(b)[inner, columns] + keep * c, row-major
  /// with `step` elements from row to row; op is 'N' as it is or 'T' transposed.
  void multiply(char op_a, char op_b, int64_t rows, int64_t columns, int64_t inner, float factor,
                const float* a, int64_t a_step, const float* b, int64_t b_step, float keep,
                float* c, int64_t c_step);

 private:
  /// `bytes` for the run's argument number `place`.
  void* converted(size_t place, size_t bytes);

  const int threads_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Entry> entries_;
  std::vector<dnnl::memory> converted_;  // bytes for the arguments of one run; they only grow
};

}  // namespace tutti
