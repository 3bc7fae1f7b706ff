#include "tutti/adapters/nn/kernels/cpu/primitive_cache.h"

#include <fmt/format.h>
#include <omp.h>

#include "tutti/base/error.h"

namespace tutti {

namespace {

// Limits oneDNN's threads for a scope. oneDNN uses OpenMP, whose number of threads is a setting of
// the calling thread; the destructor restores it.
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

PrimitiveCache::PrimitiveCache(int threads) : threads_(threads) {
  if (threads < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("layers cannot run on {} threads; expected at least 1", threads));
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

void PrimitiveCache::add(Entry& entry, int index, bool is_result, const dnnl::memory::desc& outside,
                         const dnnl::memory::desc& inside) const {
  const dnnl::memory within(inside, engine_, nullptr);
  entry.arguments.emplace(index, within);
  if (outside == inside) return;
  const dnnl::memory caller(outside, engine_, nullptr);
  entry.conversions.push_back(
      {index, is_result, is_result ? dnnl::reorder(within, caller) : dnnl::reorder(caller, within),
       caller});
}

void* PrimitiveCache::converted(size_t place, size_t bytes) {
  while (converted_.size() <= place) converted_.emplace_back();
  auto& memory = converted_[place];
  if (!memory || memory.get_desc().get_size() < bytes)
    memory = dnnl::memory(
        {{static_cast<int64_t>(bytes)}, dnnl::memory::data_type::u8, dnnl::memory::format_tag::a},
        engine_);
  return memory.get_data_handle();
}

void PrimitiveCache::run(Entry& entry, std::initializer_list<Argument> arguments) {
  const ThreadLimit limit(threads_);
  try {
    for (const auto& argument : arguments) {
      const auto found = entry.arguments.find(argument.index);
      if (found != entry.arguments.end())
        found->second.set_data_handle(const_cast<void*>(argument.data));
    }
    for (size_t i = 0; i < entry.conversions.size(); ++i) {
      auto& [index, is_result, reorder, caller] = entry.conversions[i];
      auto& within = entry.arguments.at(index);
      caller.set_data_handle(within.get_data_handle());
      within.set_data_handle(converted(i, within.get_desc().get_size()));
      if (!is_result) reorder.execute(stream_, caller, within);
    }
    entry.primitive.execute(stream_, entry.arguments);
    for (auto& [index, is_result, reorder, caller] : entry.conversions)
      if (is_result) reorder.execute(stream_, entry.arguments.at(index), caller);
    stream_.wait();
  } catch (const dnnl::error& error) {
    throw refusal("failed", error);
  }
}

void PrimitiveCache::multiply(char op_a, char op_b, int64_t rows, int64_t columns, int64_t inner,
                              float factor, const float* a, int64_t a_step, const float* b,
                              int64_t b_step, float keep, float* c, int64_t c_step) {
  const ThreadLimit limit(threads_);
  const auto status =
      dnnl_sgemm(op_a, op_b, rows, columns, inner, factor, a, a_step, b, b_step, keep, c, c_step);
  if (status != dnnl_success)
    throw Error(ErrorCode::internal,
                fmt::format("oneDNN refused a product ({})", static_cast<int>(status)));
}

}  // namespace tutti
