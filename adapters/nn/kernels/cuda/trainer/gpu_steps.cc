#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_steps.h"

#include <cstring>

#include "tutti/kernels/cuda/device/range.h"

namespace tutti::cuda {

namespace {

float* floats_of(const TensorView& view) {
  return view.data() == nullptr ? nullptr : view.as<float>();
}

size_t rounded_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

GpuSteps::GpuSteps(DeviceRuntime& runtime, std::shared_ptr<Launcher> launcher,
                   const std::vector<StepOperands>& operands)
    : runtime_(runtime),
      launcher_(std::move(launcher)),
      device_(operands.front().value.device()),
      stream_(operands.front().value.stream()) {
  std::vector<StepTensor> tensors;
  for (const auto& one : operands)
    tensors.push_back({floats_of(one.value), floats_of(one.gradient), floats_of(one.first),
                       floats_of(one.second), one.value.count(), one.is_adapted});
  const auto tiles = step_tiles(tensors);
  const size_t tensor_bytes = rounded_up(tensors.size() * sizeof(StepTensor));
  const size_t tile_bytes = rounded_up(tiles.size() * sizeof(StepTile));
  const size_t square_bytes = rounded_up(tiles.size() * sizeof(double));
  const size_t control_bytes = rounded_up(sizeof(StepControl));
  const size_t rate_bytes = rounded_up(tensors.size() * sizeof(double));
  memory_ = static_cast<std::byte*>(runtime_.allocate_on(
      tensor_bytes + tile_bytes + 3 * square_bytes + 2 * control_bytes + rate_bytes, device_,
      stream_));
  auto* at = memory_;
  const auto take = [&](size_t bytes) { return std::exchange(at, at + bytes); };
  auto* const tensor_place = take(tensor_bytes);
  auto* const tile_place = take(tile_bytes);
  table_ = {reinterpret_cast<const StepTensor*>(tensor_place),
            reinterpret_cast<const StepTile*>(tile_place),
            reinterpret_cast<double*>(take(square_bytes)), static_cast<int32_t>(tiles.size())};
  scaling_ = reinterpret_cast<StepControl*>(take(control_bytes));
  stepping_ = reinterpret_cast<StepControl*>(take(control_bytes));
  tensor_count_ = static_cast<int32_t>(tensors.size());
  layer_squares_ = reinterpret_cast<double*>(take(2 * square_bytes));
  layer_rates_ = reinterpret_cast<double*>(take(rate_bytes));
  send(tensor_place, tensors.data(), tensors.size() * sizeof(StepTensor));
  send(tile_place, tiles.data(), tiles.size() * sizeof(StepTile));
}

GpuSteps::~GpuSteps() { runtime_.free(memory_, device_); }

void GpuSteps::send(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  void* pinned = runtime_.allocate_host(bytes);
  std::memcpy(pinned, from, bytes);
  runtime_.copy(to, pinned, bytes, stream_);
  runtime_.host_function(stream_, [&runtime = runtime_, pinned] { runtime.free_host(pinned); });
}

void GpuSteps::scale_gradients(double factor, double clip) {
  const Range range("scale gradients");
  StepControl control;
  control.gradient_factor = factor;
  control.clip = clip;
  send(scaling_, &control, sizeof control);
  launcher_->launch(GradientSquares{table_}, stream_);
  launcher_->launch(SettleStep{table_, scaling_}, stream_);
  launcher_->launch(ScaleGradients{table_, scaling_}, stream_);
}

StepKernels::Outcome GpuSteps::outcome() {
  auto* pinned = static_cast<StepControl*>(runtime_.allocate_host(sizeof(StepControl)));
  try {
    runtime_.copy(pinned, scaling_, sizeof(StepControl), stream_);
    runtime_.synchronize(stream_);
  } catch (...) {
    runtime_.free_host(pinned);
    throw;
  }
  const Outcome outcome{pinned->norm, pinned->is_skipped != 0};
  runtime_.free_host(pinned);
  return outcome;
}

void GpuSteps::step(StepKind kind, const StepFactors& factors) {
  const Range range("optimizer step");
  StepControl control;
  control.kind = kind;
  control.factors = factors;
  send(stepping_, &control, sizeof control);
  launcher_->launch(StepParameters{table_, stepping_}, stream_);
}

void GpuSteps::step(LayerStep step) {
  const Range range("optimizer step");
  step.table = table_;
  step.tensor_count = tensor_count_;
  step.squares = layer_squares_;
  step.rates = layer_rates_;
  launcher_->launch(LayerSquares{step}, stream_);
  launcher_->launch(LayerRates{step}, stream_);
  launcher_->launch(LayerParameters{step}, stream_);
}

}  // namespace tutti::cuda
