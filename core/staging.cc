#include "tutti/core/staging.h"

#include <atomic>

namespace tutti {

// One operation on its way: the host copies, where they belong, and the two Works.
struct Staging::Job {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<WorkState> outer;  // the user's
  std::shared_ptr<WorkState> inner;  // the engine's
  std::vector<std::unique_ptr<Entry>> entries;
  struct Back {
    Tensor from;
    TensorView to;
  };
  std::vector<Back> back;
  std::vector<Tensor> inputs;
  size_t outputs = 0;  // how many the library makes
  std::atomic<size_t> copies_left{0};

  // The user's Work is over. Its callbacks may call the device's runtime, so this is not called in
  // stream order but by the engine.
  void finish(const Error* error) {
    std::vector<WorkCallback> callbacks;
    outer->finish_part(error, callbacks);
    const auto exception = outer->exception();
    for (auto& callback : callbacks) callback(exception);
  }

  // In stream order, once all inputs are in host memory.
  static void submit(const std::shared_ptr<Job>& job) {
    try {
      job->engine->submit(std::move(job->entries), true);
    } catch (const Error& error) {
      job->engine->post([job, error] { job->finish(&error); });
    }
  }
};

Staging::Staging(std::shared_ptr<Engine> engine, Device device)
    : engine_(std::move(engine)),
      runtime_(device_runtime(device.kind)),
      device_(device),
      stream_(runtime_.create_stream(device)) {}

Staging::~Staging() {
  runtime_.synchronize(stream_);
  runtime_.destroy_stream(stream_);
}

std::shared_ptr<WorkState> Staging::submit(std::string name,
                                           std::vector<std::unique_ptr<Entry>> entries) {
  auto job = std::make_shared<Job>();
  job->engine = engine_;
  job->outer = std::make_shared<WorkState>(engine_, name, 1);
  job->outer->gate_streams(runtime_);
  job->inner = std::make_shared<WorkState>(engine_, name, static_cast<int>(entries.size()));
  job->copies_left = entries.size();
  std::vector<TensorView> sources;
  for (auto& entry : entries) {
    entry->work = job->inner;
    job->outputs += entry->library_output;
    sources.push_back(entry->input);
    const TensorView target = entry->output;
    const bool in_place = target.data() == entry->input.data();
    job->inputs.emplace_back(entry->input.shape(), entry->input.dtype());
    entry->input = job->inputs.back();
    if (target.data() == nullptr) continue;
    const Tensor output = in_place ? job->inputs.back() : Tensor(target.shape(), target.dtype());
    entry->output = output;
    job->back.push_back({output, target});
  }
  job->inner->then([this, job](std::exception_ptr error) { copy_back(job, error); });
  job->entries = std::move(entries);
  for (size_t i = 0; i < sources.size(); ++i) {
    runtime_.copy(job->inputs[i].data(), sources[i].data(), static_cast<size_t>(sources[i].bytes()),
                  sources[i].stream());
    runtime_.host_function(sources[i].stream(), [job] {
      if (job->copies_left.fetch_sub(1) == 1) Job::submit(job);
    });
  }
  return job->outer;
}

void Staging::copy_back(const std::shared_ptr<Job>& job, std::exception_ptr exception) {
  std::optional<Error> failed;
  try {
    if (exception) std::rethrow_exception(exception);
    for (const auto& [from, to] : job->back)
      runtime_.copy(to.data(), from.data(), static_cast<size_t>(to.bytes()), stream_);
    for (size_t i = 0; i < job->outputs; ++i) {
      const Tensor host = job->inner->output(i);
      const Tensor made(host.shape(), host.dtype(), device_);
      runtime_.copy(made.data(), host.data(), static_cast<size_t>(host.bytes()), stream_);
      job->back.push_back({host, made});
      job->outer->set_output(i, made);
    }
    job->outer->set_received(job->inner->received());
  } catch (const Error& error) {
    failed = error;
  }
  job->outer->open_gate(stream_);
  runtime_.host_function(stream_, [job, failed] {
    job->engine->post([job, failed] { job->finish(failed ? &*failed : nullptr); });
  });
}

}  // namespace tutti
