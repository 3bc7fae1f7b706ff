#include "tutti/kernels/layers/primitive_cache.h"

#include <fmt/format.h>
#include <omp.h>

#include "tutti/base/error.h"

namespace tutti {

namespace {

// oneDNN parallelises by OpenMP; the number of threads is the calling thread's own setting, which
// belongs to the caller and is given back.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ThreadLimit() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  const int before_;
};

Error refusal(std::string_view what, const dnnl::error& error) {
  return Error(ErrorCode::internal, fmt::format("oneDNN {}: {} ({})", what, error.message,
                                                static_cast<int>(error.status)));
}

}  // namespace

void PrimitiveCache::set_threads(int threads) {
  if (threads < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("layers cannot run on {} threads; expected at least 1", threads));
  if (threads != threads_) entries_.clear();
  threads_ = threads;
}

PrimitiveCache::Entry& PrimitiveCache::entry(
    const Key& key, const std::function<Entry(const dnnl::engine&)>& make) {
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second;
  const ThreadLimit limit(threads_);
  try {
    return entries_.emplace(key, make(engine_)).first->second;
  } catch (const dnnl::error& error) {
    throw refusal("refused a primitive", error);
  }
}

PrimitiveCache::Arguments PrimitiveCache::arguments(
    std::initializer_list<std::pair<int, dnnl::memory::desc>> descs) const {
  Arguments all;
  for (const auto& [index, desc] : descs) all.emplace(index, dnnl::memory(desc, engine_, nullptr));
  return all;
}

void PrimitiveCache::run(Entry& entry, std::initializer_list<Argument> arguments) {
  const ThreadLimit limit(threads_);
  try {
    for (const auto& argument : arguments)
      entry.arguments.at(argument.index).set_data_handle(const_cast<void*>(argument.data));
    entry.primitive.execute(stream_, entry.arguments);
    stream_.wait();
  } catch (const dnnl::error& error) {
    throw refusal("failed", error);
  }
}

}  // namespace tutti
