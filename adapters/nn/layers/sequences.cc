// Layers of sequences: [batch, length, features].

#include <fmt/format.h>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/layers/weighted.h"
#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

class Embedding final : public Layer {
 public:
  Embedding(int64_t rows, int64_t features, const EmbeddingOptions& options)
      : options_(options), table_(make_parameter("weight", Shape{rows, features})) {
    if (options.positions > 0)
      positions_ = make_parameter("positions", Shape{options.positions, features});
  }
  std::string kind() const override {
    const auto& table = table_.value.shape();
    return fmt::format("embedding({}, {})", table[0], table[1]);
  }
  void initialize(uint64_t seed) override {
    for (const auto* parameter : parameters()) fill_normal(*parameter, options_.deviation, seed);
  }
  std::vector<Parameter*> parameters() override {
    if (options_.positions > 0) return {&table_, &positions_};
    return {&table_};
  }
  const Parameter& table() const { return table_; }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    require_whole();
    const auto& shape = input.shape();
    const int64_t length = shape.rank() == 2 ? shape[1] : 0;
    if (input.dtype() != DataType::i64 || shape.rank() < 1 ||
        (options_.positions > 0 && (shape.rank() != 2 || length > options_.positions)))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("layer {}: {} got {}{}, expected i64{}", path(), kind(),
                              to_string(input.dtype()), shape.to_string(),
                              options_.positions > 0
                                  ? fmt::format("[batch, length up to {}]", options_.positions)
                                  : "[batch, ...]"));
    std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
    extents.push_back(table_.value.shape()[1]);
    Tensor output = pass.kernels.make_tensor(Shape(extents), DataType::f32);
    pass.kernels.embedding_forward(input, table_.value, output);
    context.kept = {input};
    if (options_.positions > 0) {
      context.kept.push_back(pass.kernels.upload(positions_of(shape)));
      const Tensor places = pass.kernels.make_tensor(output.shape(), DataType::f32);
      pass.kernels.embedding_forward(context.kept[1], positions_.value, places);
      pass.kernels.add(places, output);
    }
    return output;
  }
  // Indices have no gradient.
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    if (!wanted.weights) return {};
    pass.kernels.embedding_backward(context.kept[0], gradient, table_.gradient);
    if (options_.positions > 0)
      pass.kernels.embedding_backward(context.kept[1], gradient, positions_.gradient);
    announce();
    return {};
  }

 private:
  static Tensor positions_of(const Shape& shape) {
    const Tensor places(shape, DataType::i64);
    for (int64_t i = 0; i < places.count(); ++i) places.as<int64_t>()[i] = i % shape[1];
    return places;
  }

  const EmbeddingOptions options_;
  Parameter table_, positions_;
};

// A linear layer whose weight is the table of an embedding. The embedding announces the gradient,
// because its backward comes last.
class TiedLinear final : public Layer {
 public:
  explicit TiedLinear(const Parameter& table) : table_(table) {}
  std::vector<const Parameter*> borrowed() override { return {&table_}; }
  std::string kind() const override {
    const auto& table = table_.value.shape();
    return fmt::format("tied_linear({}, {})", table[1], table[0]);
  }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& shape = input.shape();
    require_input(input, shape.rank() >= 2 && shape[shape.rank() - 1] == table_.value.shape()[1],
                  "[batch, ..., features]");
    context.kept = {input};
    Tensor output =
        pass.kernels.make_tensor(linear_output(shape, table_.value.shape()), input.dtype());
    pass.kernels.linear_forward(input, table_.value, TensorView(), output);
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    const auto& input = context.kept[0];
    if (wanted.weights)
      pass.kernels.linear_backward_weights(input, gradient, table_.gradient, TensorView());
    if (!wanted.input) return {};
    Tensor input_gradient = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.linear_backward_input(table_.value, gradient, input_gradient);
    return input_gradient;
  }

 private:
  const Parameter& table_;
};

class Attention final : public Layer {
 public:
  explicit Attention(const AttentionOptions& options)
      : options_{.heads = options.heads, .causal = options.causal} {}
  std::string kind() const override {
    return fmt::format("{}attention({})", options_.causal ? "causal_" : "", options_.heads);
  }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& shape = input.shape();
    require_input(input, shape.rank() == 3 && shape[2] % (3 * options_.heads) == 0,
                  "[batch, length, 3 * heads * width]");
    const auto s = attention_shape(options_, shape);
    Tensor output = pass.kernels.make_tensor(attention_output(s), input.dtype());
    const Tensor log_sums =
        pass.kernels.make_tensor(Shape{s.batch, options_.heads, s.length}, DataType::f32);
    pass.kernels.attention_forward(options_, input, output, log_sums);
    context.kept = {input, output, log_sums};
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    if (!wanted.input) return {};
    const auto& input = context.kept[0];
    Tensor input_gradient = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.attention_backward(options_, input, context.kept[1], context.kept[2], gradient,
                                    input_gradient);
    return input_gradient;
  }

 private:
  const tutti::AttentionOptions options_;  // the kernels' options
};

}  // namespace

std::unique_ptr<Layer> embedding(int64_t rows, int64_t features, const EmbeddingOptions& options) {
  return std::make_unique<Embedding>(rows, features, options);
}
std::unique_ptr<Layer> tied_linear(const Layer& layer) {
  if (const auto* embedding = dynamic_cast<const Embedding*>(&layer))
    return std::make_unique<TiedLinear>(embedding->table());
  throw Error(ErrorCode::invalid_argument,
              fmt::format("tied_linear shares the table of an embedding, not of {}", layer.kind()));
}
std::unique_ptr<Layer> attention(const AttentionOptions& options) {
  if (options.heads < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("attention cannot have {} heads", options.heads));
  return std::make_unique<Attention>(options);
}

}  // namespace tutti::nn
