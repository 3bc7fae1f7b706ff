#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>

#include "tutti/adapters/nn/data.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti::nn {

// Copies images to a device on a stream of its own. It takes the memory of the images back when the
// reader no longer uses it. The tensors own a reference to the Courier, so it may outlive the
// loader. No call waits for a stream.
class DataLoader::Courier : public std::enable_shared_from_this<Courier> {
 public:
  Courier(Device device, StreamRef reader)
      : runtime_(device_runtime(device.kind)),
        device_(device),
        reader_(reader),
        stream_(runtime_.create_stream(device)),
        sent_(runtime_.create_event(device)),
        read_(runtime_.create_event(device)) {}
  ~Courier() {
    runtime_.destroy_event(sent_);
    runtime_.destroy_event(read_);
    runtime_.destroy_stream(stream_);
  }

  /// Returns a tensor on the device that holds what `fill` writes. The loader's thread calls this.
  Tensor send(const Shape& shape, const std::function<void(float*)>& fill) {
    const auto bytes = static_cast<size_t>(shape.count()) * sizeof(float);
    void* const pinned = runtime_.allocate_host(bytes);
    Tensor tensor;
    try {
      fill(static_cast<float*>(pinned));
      void* const memory = runtime_.allocate_on(std::max<size_t>(bytes, 1), device_, stream_);
      tensor = Tensor(TensorView(memory, shape, DataType::f32, device_, reader_),
                      std::shared_ptr<void>(memory, [self = shared_from_this()](void* what) {
                        self->take_back(what);
                      }));
      runtime_.copy(memory, pinned, bytes, stream_);
    } catch (...) {
      runtime_.free_host(pinned);
      throw;
    }
    runtime_.host_function(stream_, [&runtime = runtime_, pinned] { runtime.free_host(pinned); });
    runtime_.record(sent_, stream_);
    return tensor;
  }
  /// Makes the reader's stream wait for the last send().
  void await() { runtime_.wait_event(reader_, sent_); }

 private:
  // Any thread calls this when the last reference to the tensor is gone. Everything that reads the
  // tensor is on the reader's stream by then.
  void take_back(void* memory) noexcept {
    if (made_.forked()) return;
    try {
      const std::lock_guard lock(mutex_);
      runtime_.record(read_, reader_);
      runtime_.wait_event(stream_, read_);
    } catch (const std::exception&) {
      // A device that has failed executes nothing any more.
    }
    runtime_.free(memory, device_);
  }

  DeviceRuntime& runtime_;
  const Device device_;
  const StreamRef reader_, stream_;
  void* const sent_;  // event that the loader's thread records and its user awaits
  std::mutex mutex_;  // guards the use of read_
  void* const read_;
  const ForkGuard made_;
};

DataLoader::DataLoader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset), options_(options) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::invalid_argument, "DataLoader: " + why);
  };
  if (options.batch < 1)
    throw refuse(fmt::format("a batch of {} images, expected at least 1", options.batch));
  if (options.rank < 0 || options.rank >= options.size)
    throw refuse(fmt::format("rank {} of {}", options.rank, format_count(options.size, "rank")));
  if (steps_per_epoch() == 0)
    throw refuse(fmt::format("{} are too few for one step of {} with {} each",
                             format_count(dataset.count(), "image"),
                             format_count(options.size, "rank"), options.batch));
  if (options.device != Device{})
    courier_ = std::shared_ptr<Courier>(new Courier(options.device, options.stream),
                                        DeleteWhereMade<Courier>());
}

void DataLoader::check_not_forked() const {
  if (fork_guard_.forked())
    throw Error(ErrorCode::closed,
                "DataLoader: this process is a fork of the one that made it, whose thread prepares "
                "the batches; make a new one here");
}

int64_t DataLoader::steps_per_epoch() const {
  const int64_t global = options_.batch * options_.size;
  if (options_.drop_last) return dataset_.count() / global;
  // The number of steps in which this rank gets images.
  const int64_t whole = dataset_.count() / global, rest = dataset_.count() % global;
  return whole + (rest > options_.rank * options_.batch ? 1 : 0);
}

void DataLoader::restore(const LoaderPosition& position) {
  check_not_forked();
  if (position.epoch < 0 || position.step < 0)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("DataLoader: epoch {} and step {} are not a position; both must be 0 or more",
                    position.epoch, position.step));
  require_sample_order("DataLoader", position.order, options_.shuffle && position.step > 0);
  // The batch prepared ahead belongs to the old position.
  ahead_.reset();
  position_ = position;
  position_.order = kSampleOrder;
  // Any step beyond the number of images is past the end of the epoch. The limit keeps the product
  // from overflowing.
  if (position.consumed < 0)
    position_.consumed = std::min(position.step, dataset_.count()) * options_.batch * options_.size;
}

// Returns whether this rank gets images from the rest of the epoch.
bool DataLoader::has_batch() const {
  const int64_t left = dataset_.count() - position_.consumed;
  if (options_.drop_last) return left >= options_.batch * options_.size;
  return left > options_.rank * options_.batch;
}

void DataLoader::order_epoch(int64_t epoch) {
  if (ordered_epoch_ == epoch) return;
  ordered_epoch_ = epoch;
  if (options_.shuffle) {
    order_ = permutation(dataset_.count(), options_.seed, epoch);
    return;
  }
  order_.resize(static_cast<size_t>(dataset_.count()));
  std::iota(order_.begin(), order_.end(), int64_t{0});
}

Batch DataLoader::make(int64_t epoch, int64_t consumed) {
  order_epoch(epoch);
  const int64_t first = consumed + options_.rank * options_.batch;
  const int64_t count = std::min(options_.batch, dataset_.count() - first);
  const auto shape = dataset_.images.shape().with_rows(count);
  const int64_t pixels = shape.row_count();
  const auto source = [&](int64_t i) { return order_[static_cast<size_t>(first + i)]; };
  const auto fill = [&](float* to) {
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* from = dataset_.images.as<uint8_t>() + source(i) * pixels;
      for (int64_t p = 0; p < pixels; ++p) *to++ = static_cast<float>(from[p]) / 255.0f - 0.5f;
    }
  };
  Batch batch{{}, Tensor(Shape{count}, DataType::i64)};
  for (int64_t i = 0; i < count; ++i)
    batch.labels.as<int64_t>()[i] = dataset_.labels.as<uint8_t>()[source(i)];
  if (courier_) {
    batch.images = courier_->send(shape, fill);
  } else {
    batch.images = Tensor(shape, DataType::f32);
    fill(batch.images.as<float>());
  }
  return batch;
}

void DataLoader::prefetch() {
  // If the system gives no thread, the batch is made by next() itself.
  ahead_.reset(new std::future<Batch>(std::async(
      std::launch::async | std::launch::deferred,
      [this, position = position_] { return make(position.epoch, position.consumed); })));
}

std::optional<Batch> DataLoader::next() {
  check_not_forked();
  if (!has_batch()) {
    position_ = {.epoch = position_.epoch + 1, .consumed = 0};
    return {};
  }
  if (!ahead_) prefetch();
  const auto ahead = std::move(ahead_);  // ahead_ is empty now, even if this batch failed
  Batch batch = ahead->get();
  if (courier_) courier_->await();  // before another one is sent
  ++position_.step;
  position_.consumed =
      std::min(position_.consumed + options_.batch * options_.size, dataset_.count());
  if (has_batch()) prefetch();
  return batch;
}

}  // namespace tutti::nn
