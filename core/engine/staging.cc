#include "tutti/core/engine/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <new>
#include <optional>

#include "tutti/backends/device/device_span.h"

namespace tutti {

namespace {

// Returns a tensor in `memory` with the shape and dtype of `view`. The memory must be large enough.
Tensor tensor_in(const std::shared_ptr<void>& memory, const TensorView& view) {
  return {TensorView(memory.get(), view.shape(), view.dtype()), memory};
}

size_t bytes_of(const TensorView& view) {
  return view.data() == nullptr ? 0 : static_cast<size_t>(view.bytes());
}

// Converts the exception that is being handled to the error of the operation `name`.
Error staging_error(const std::string& name) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::out_of_memory,
                 fmt::format("\"{}\": this process ran out of memory on the way to or from the "
                             "device",
                             name))
        .with_tensor(name);
  } catch (const std::exception& error) {
    return Error(ErrorCode::internal, fmt::format("\"{}\": {}", name, error.what()))
        .with_tensor(name);
  }
}

}  // namespace

// One tensor of an operation: its views of device memory and its copies in host memory.
class Staging::StagedTensor final : public Staged {
 public:
  StagedTensor(const Entry& entry, DeviceRuntime& runtime, StreamRef stream, HostPool& pool,
               int64_t partition_bytes, std::shared_ptr<const DeviceSpans> spans)
      : input_(entry.input),
        output_(entry.output),
        spans_(std::move(spans)),
        runtime_(runtime),
        stream_(stream),
        has_input_(input_.data() != nullptr || !has_output()),
        travels_in_pieces_(entry.request.signature.kind == CollectiveKind::allreduce) {
    // If input and output begin at the same address, they also share one block of host memory. It
    // is large enough for the longer of the two.
    const bool in_place = has_input_ && output_.data() == input_.data();
    const size_t given = bytes_of(input_), taken = bytes_of(output_);
    const auto memory = has_input_ ? pool.take(in_place ? std::max(given, taken) : given) : nullptr;
    if (has_input_) host_input_ = tensor_in(memory, input_);
    if (has_output()) host_output_ = tensor_in(in_place ? memory : pool.take(taken), output_);
    // plan_buckets() cuts the tensor into the same pieces.
    if (has_input_) piece_ = input_.count();
    if (travels_in_pieces_ && partition_bytes > 0)
      piece_ = std::max<int64_t>(1, partition_bytes / size_of(entry.request.signature.wire));
  }

  // --- called by the engine ---
  bool arrived(int64_t end) const override {
    return arrived_.load(std::memory_order_acquire) >= end;
  }
  void finished(int64_t begin, int64_t count) noexcept override {
    if (failure_) return;
    try {
      copy(begin, count);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  const TensorView& input() const { return input_; }
  bool has_input() const { return has_input_; }  // false for a scatter on a non-root rank
  /// Returns the user's stream. The memory may be used after the work that is already on this
  /// stream.
  StreamRef stream() const { return (has_input_ ? input_ : output_).stream(); }
  const std::shared_ptr<const DeviceSpans>& spans() const { return spans_; }
  const Tensor& host_input() const { return host_input_; }
  const Tensor& host_output() const { return host_output_; }
  bool has_output() const { return output_.data() != nullptr; }
  int64_t piece() const { return piece_; }
  void arrive(int64_t end) { arrived_.store(end, std::memory_order_release); }
  // Copies back an output that is not copied in pieces. Rethrows a failure of finished().
  void finish() {
    if (failure_) std::rethrow_exception(failure_);
    if (has_output() && !travels_in_pieces_) copy(0, output_.count());
  }

 private:
  void copy(int64_t begin, int64_t count) {
    const int64_t element = size_of(output_.dtype());
    DeviceSpan span(runtime_, stream_, spans_, "copy back");
    runtime_.copy(output_.data() + begin * element, host_output_.data() + begin * element,
                  static_cast<size_t>(count * element), stream_);
    span.end();
  }

  const TensorView input_, output_;                 // on the device
  const std::shared_ptr<const DeviceSpans> spans_;  // null: no timeline
  DeviceRuntime& runtime_;
  const StreamRef stream_;
  const bool has_input_;
  Tensor host_input_, host_output_;
  const bool travels_in_pieces_;
  int64_t piece_ = 0;
  std::atomic<int64_t> arrived_{-1};
  std::exception_ptr failure_;
};

// One running operation: its tensors and its two Works. Every function that a device, an engine or
// a queue will call for the operation holds the Job. When the last of these functions is gone,
// called or not, nothing else can finish the user's Work. The Job's destructor then finishes it
// with an error.
struct Staging::Job {
  Job(std::shared_ptr<Engine> of, const std::string& name)
      : engine(std::move(of)),
        given_up(ErrorCode::unavailable,
                 fmt::format("\"{}\": its device never reported its end, because the device failed "
                             "or this process ran out of memory; make a new Communicator",
                             name)) {}
  ~Job() {
    if (is_promised && !engine->forked()) finish(std::move(given_up));
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  std::shared_ptr<Engine> engine;
  Error given_up;                    // the destructor's error; made early, while there is memory
  bool is_promised = false;          // the user has the Work, and it is not finished
  std::shared_ptr<WorkState> outer;  // the Work of the user
  std::shared_ptr<WorkState> inner;  // the Work of the engine
  std::vector<std::unique_ptr<Entry>> entries;
  std::deque<StagedTensor> tensors;
  std::vector<Tensor> sent_back;  // host memory of outputs that the library made
  size_t outputs = 0;             // number of outputs that the library made
  std::atomic<size_t> left{0};    // number of tensors whose first piece has not arrived

  // Finishes the user's Work. Its callbacks may call the device's runtime, which a host function in
  // a stream must not do. So this runs on the callback thread.
  void finish(std::optional<Error> error) noexcept {
    is_promised = false;
    engine->end_part(*outer, std::move(error));
    engine->work_ended();
  }

  // Counts the first piece of one tensor as arrived. It is usually called in stream order. The call
  // for the last tensor submits the operation.
  static void arrive(const std::shared_ptr<Job>& job) {
    if (job->left.fetch_sub(1) != 1) return;
    try {
      job->engine->submit(std::move(job->entries), true);
    } catch (...) {
      fail(job);
    }
  }
  // Fails the Job with the exception that is being handled. May be called in stream order.
  static void fail(const std::shared_ptr<Job>& job) noexcept {
    job->forget();
    try {
      job->engine->post([job, error = staging_error(job->outer->name())] { job->finish(error); });
    } catch (const std::bad_alloc&) {
      // There is no memory for this error. The Job's destructor then reports the error `given_up`.
    }
  }
  // Drops the entries and the engine's Work if nothing was submitted. This breaks a cycle of
  // ownership: the engine's Work holds the Job, and the Job holds that Work.
  void forget() {
    entries.clear();
    inner.reset();
  }
};

Staging::Staging(std::shared_ptr<Engine> engine, Device device)
    : engine_(std::move(engine)),
      runtime_(device_runtime(device.kind)),
      device_(device),
      stream_(runtime_.create_stream(device)),
      pool_(std::make_shared<HostPool>(runtime_)) {}

std::shared_ptr<Staging> Staging::make(std::shared_ptr<Engine> engine, Device device) {
  return {new Staging(std::move(engine), device), DeleteWhereMade<Staging>()};
}

Staging::~Staging() {
  try {
    runtime_.synchronize(stream_);
  } catch (const std::exception& error) {
    // A device that failed for good returns an error from every call. The Works report its first
    // error.
    engine_->log(LogLevel::warning,
                 fmt::format("rank {}: the end of {}'s stream was not seen: {}",
                             engine_->context().rank, to_string(device_), error.what()));
  }
  runtime_.destroy_stream(stream_);
}

std::shared_ptr<WorkState> Staging::submit(std::string name,
                                           std::vector<std::unique_ptr<Entry>> entries) {
  auto job = std::make_shared<Job>(engine_, name);
  job->outer = std::make_shared<WorkState>(engine_, name, 1);
  job->outer->gate_streams(runtime_, device_);
  job->inner = std::make_shared<WorkState>(engine_, name, static_cast<int>(entries.size()));
  for (auto& entry : entries) prepare(*entry, job);
  job->inner->then([staging = shared_from_this(), job](std::exception_ptr error) {
    staging->copy_back(job, error);
  });
  job->entries = std::move(entries);
  // This thread counts as one more tensor, so nothing is submitted before all copies are in the
  // stream.
  job->left = job->tensors.size() + 1;
  try {
    for (auto& tensor : job->tensors) copy_out(tensor, job);
  } catch (...) {
    job->forget();
    throw;
  }
  auto outer = job->outer;
  job->is_promised = true;
  Job::arrive(job);
  return outer;
}

void Staging::prepare(Entry& entry, const std::shared_ptr<Job>& job) {
  auto& tensor = job->tensors.emplace_back(entry, runtime_, stream_, *pool_,
                                           engine_->options().partition_bytes,
                                           engine_->timeline().device_spans(entry.request.name));
  entry.staged = &tensor;
  entry.work = job->inner;
  if (tensor.has_input()) entry.input = tensor.host_input();
  if (tensor.has_output()) entry.output = tensor.host_output();
  job->outputs += entry.library_output;
}

void Staging::copy_out(StagedTensor& tensor, const std::shared_ptr<Job>& job) {
  const auto& input = tensor.input();
  const auto stream = tensor.stream();
  const int64_t element = size_of(input.dtype()), count = tensor.has_input() ? input.count() : 0;
  int64_t begin = 0;
  DeviceSpan span(runtime_, stream, tensor.spans(), "copy out");
  do {
    const int64_t end = std::min(begin + tensor.piece(), count);
    if (tensor.has_input())
      runtime_.copy(tensor.host_input().data() + begin * element, input.data() + begin * element,
                    static_cast<size_t>((end - begin) * element), stream);
    runtime_.host_function(stream, [job, &tensor, is_first = begin == 0, end] {
      tensor.arrive(end);
      if (is_first)
        Job::arrive(job);
      else
        job->engine->wake();
    });
    begin = end;
  } while (begin < count);
  span.end();
}

// Copies the results back. Normally a host function in the stream finishes the user's Work. If
// something throws before that function is in the stream, copy_back() finishes the Work. It first
// waits until the stream is idle, because a copy may still run.
void Staging::copy_back(const std::shared_ptr<Job>& job, std::exception_ptr exception) try {
  std::optional<Error> failed;
  try {
    if (exception) std::rethrow_exception(exception);
    for (auto& tensor : job->tensors) tensor.finish();
    for (size_t i = 0; i < job->outputs; ++i) {
      const Tensor host = job->inner->output(i);
      // The host memory of this output is not pinned, so its copy may block the callback thread
      // briefly. Pinning it here could block that thread until the device is idle.
      const Tensor made(host.shape(), host.dtype(), device_);
      runtime_.copy(made.data(), host.data(), static_cast<size_t>(host.bytes()), stream_);
      job->sent_back.push_back(host);
      job->outer->set_output(i, made);
    }
    job->outer->set_received(job->inner->received());
  } catch (...) {
    failed = staging_error(job->outer->name());
  }
  job->outer->open_gate(stream_);
  runtime_.host_function(stream_, [job, failed] {
    try {
      job->engine->post([job, failed] { job->finish(failed); });
    } catch (const std::bad_alloc&) {
      // When this function object is destroyed, the Job's destructor finishes the Work.
    }
  });
} catch (...) {
  try {
    runtime_.synchronize(stream_);
  } catch (const std::exception&) {
    // The device failed for good and copies nothing more. Its first error is reported.
  }
  job->finish(staging_error(job->outer->name()));
}

}  // namespace tutti
