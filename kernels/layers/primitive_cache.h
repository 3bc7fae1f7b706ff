#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti {

/// Primitives of oneDNN with their memory objects, each made once and run on a number of threads.
/// One thread at a time uses an object. Throws Error(internal) with oneDNN's own text if it
/// refuses.
class PrimitiveCache {
 public:
  /// What a primitive computes, and the numbers of its shape.
  using Key = std::vector<int64_t>;
  using Arguments = std::unordered_map<int, dnnl::memory>;
  /// The memory objects' data pointers are set anew at each run.
  struct Entry {
    dnnl::primitive primitive;
    Arguments arguments;
  };
  /// An argument of a primitive by its DNNL_ARG_ number; what the primitive writes is not const.
  struct Argument {
    int index;
    const void* data;
  };

  explicit PrimitiveCache(int threads) { set_threads(threads); }
  /// Drops all primitives, which are made for one number of threads. Throws
  /// Error(invalid_argument) below 1.
  void set_threads(int threads);
  int threads() const { return threads_; }

  /// What is there for `key`, or what `make` makes of it. Stays where it is until set_threads().
  Entry& entry(const Key& key, const std::function<Entry(const dnnl::engine&)>& make);
  /// Memory objects of a primitive to be made, without data as yet.
  Arguments arguments(std::initializer_list<std::pair<int, dnnl::memory::desc>> descs) const;
  /// Returns when all is computed.
  void run(Entry& entry, std::initializer_list<Argument> arguments);

 private:
  int threads_ = 1;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Entry> entries_;
};

}  // namespace tutti
