#include "tutti/adapters/nn/kernels/layer_shapes.h"

#include <fmt/format.h>

#include <vector>

#include "tutti/base/error.h"

namespace tutti {

namespace {

void require(bool good, const char* layer, const std::string& came) {
  if (!good)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} cannot take {}: every extent but the batch must be at least 1, the "
                            "channels must be equal and the window must fit into the image",
                            layer, came));
}

}  // namespace

LinearShape linear_shape(const Shape& input, const Shape& weight) {
  const bool has_rows = input.rank() >= 1 && weight.rank() == 2;
  const int64_t inputs = has_rows ? input[input.rank() - 1] : 0;
  if (inputs < 1 || weight[1] != inputs || weight[0] < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("linear cannot take {} with a weight {}; expected [..., inputs] and "
                            "[outputs, inputs], each at least 1",
                            input.to_string(), weight.to_string()));
  return {input.count() / inputs, inputs, weight[0]};
}

Shape linear_output(const Shape& input, const Shape& weight) {
  std::vector<int64_t> extents(input.extents().begin(), input.extents().end());
  extents.back() = weight[0];
  return Shape(extents);
}

ConvolutionShape convolution_shape(const ConvolutionOptions& options, const Shape& input,
                                   const Shape& weight) {
  const auto came = [&] {
    return fmt::format("images {} with filters {}, stride {}, padding {}", input.to_string(),
                       weight.to_string(), options.stride, options.padding);
  };
  require((input.rank() == 4 || input.rank() == 5) && weight.rank() == input.rank() &&
              input[1] == weight[1] && options.stride > 0 && options.padding >= 0,
          "convolution", came());
  ConvolutionShape shape{input[0],  input[1],  weight[0], input.rank() - 2,
                         {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
  bool fits = shape.input_channels > 0 && shape.output_channels > 0;
  for (int i = 2; i < input.rank(); ++i) {
    const auto to = static_cast<size_t>(3 - shape.dimensions + i - 2);
    shape.image[to] = input[i];
    shape.kernel[to] = weight[i];
    shape.stride[to] = options.stride;
    shape.padding[to] = options.padding;
    fits = fits && weight[i] > 0 && weight[i] <= input[i] + 2 * options.padding;
  }
  require(fits, "convolution", came());
  return shape;
}

Shape convolution_output(const ConvolutionShape& shape) {
  const auto windows = shape.output();
  std::vector<int64_t> extents{shape.batch, shape.output_channels};
  extents.insert(extents.end(), windows.end() - shape.dimensions, windows.end());
  return Shape(extents);
}

PoolingShape pooling_shape(const PoolingOptions& options, const Shape& input) {
  require(input.rank() == 4 && input[1] > 0 && options.kernel > 0 && options.stride > 0 &&
              options.padding >= 0 && options.padding < options.kernel &&
              options.kernel <= std::min(input[2], input[3]) + 2 * options.padding,
          "pooling",
          fmt::format("images {} with windows of {}x{}, stride {}, padding {}", input.to_string(),
                      options.kernel, options.kernel, options.stride, options.padding));
  return {options, input[0], input[1], input[2], input[3]};
}

Shape pooling_output(const PoolingShape& shape) {
  return {shape.batch, shape.channels, shape.output_height(), shape.output_width()};
}

AttentionShape attention_shape(const AttentionOptions& options, const Shape& packed) {
  const int64_t features = packed.rank() == 3 ? packed[2] : 0;
  if (options.heads < 1 || features < 1 || packed[1] < 1 || features % (3 * options.heads) != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("attention of {} heads cannot take {}; expected [batch, length, 3 * "
                            "heads * width], each but the batch at least 1",
                            options.heads, packed.to_string()));
  return {options, packed[0], packed[1], features / 3 / options.heads};
}

RecurrentShape recurrent_shape(Recurrence recurrence, const Shape& gates) {
  const int64_t count = gate_count(recurrence);
  if (gates.rank() != 3 || gates[1] < 1 || gates[2] < 1 || gates[2] % count != 0)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a recurrent layer of {} gates cannot take {}; expected [batch, length, "
                    "gates * width], each but the batch at least 1",
                    count, gates.to_string()));
  return {gates[0], gates[1], gates[2] / count, count, recurrence == Recurrence::lstm ? 5 : 4};
}

Shape attention_output(const AttentionShape& shape) {
  return {shape.batch, shape.length, shape.options.heads * shape.width};
}

ChannelsShape channels_shape(const char* layer, const Shape& input) {
  if (input.rank() < 2 || input[1] < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} cannot take {}; expected [batch, channels, ...] with at least one "
                            "channel",
                            layer, input.to_string()));
  int64_t positions = 1;
  for (int i = 2; i < input.rank(); ++i) positions *= input[i];
  return {input[0], input[1], positions};
}

void require_shape(const char* layer, const char* name, const TensorView& view,
                   const Shape& expected) {
  if (view.shape() == expected) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the {} has shape {}; expected {}", layer, name,
                          view.shape().to_string(), expected.to_string()));
}

}  // namespace tutti
