// Recurrent layers and matrix factorisation.

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/layers/weighted.h"
#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {

namespace {

class Recurrent final : public Layer {
 public:
  Recurrent(Recurrence recurrence, int64_t inputs, int64_t width)
      : recurrence_(recurrence),
        inputs_(inputs),
        width_(width),
        shape_(recurrent_shape(recurrence, Shape{1, 1, gate_count(recurrence) * width})),
        input_weight_(make_parameter("input_weight", Shape{shape_.gates * width, inputs})),
        input_bias_(make_parameter("input_bias", Shape{shape_.gates * width})),
        hidden_weight_(make_parameter("hidden_weight", Shape{shape_.gates * width, width})),
        hidden_bias_(make_parameter("hidden_bias", Shape{shape_.gates * width})) {}
  std::string kind() const override {
    return fmt::format("{}({}, {})", recurrence_ == Recurrence::lstm ? "lstm" : "gru", inputs_,
                       width_);
  }
  // Draws uniform values with bound 1 / sqrt(width), as usual for recurrent layers.
  void initialize(uint64_t seed) override {
    for (const auto* parameter : parameters())
      fill_uniform(*parameter, 1 / std::sqrt(static_cast<double>(width_)), seed);
  }
  std::vector<Parameter*> parameters() override {
    return {&input_weight_, &input_bias_, &hidden_weight_, &hidden_bias_};
  }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& shape = input.shape();
    require_input(input, shape.rank() == 3 && shape[2] == inputs_ && shape[1] > 0,
                  "[batch, length, inputs]");
    const Tensor gates =
        pass.kernels.make_tensor(linear_output(shape, input_weight_.value.shape()), DataType::f32);
    pass.kernels.linear_forward(input, input_weight_.value, input_bias_.value, gates);
    const Tensor kept(Shape{shape[0], shape[1], shape_.kept * width_}, DataType::f32);
    Tensor output = pass.kernels.make_tensor(Shape{shape[0], shape[1], width_}, input.dtype());
    pass.kernels.recurrent_forward(recurrence_, gates, hidden_weight_.value, hidden_bias_.value,
                                   output, kept);
    context.kept = {input, output, kept, Tensor(), Tensor()};
    return output;
  }

  // The gates' gradients are computed step by step, from the last step to the first. The first pass
  // that asks for a gradient computes them; the rest are matrix products.
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    const auto &input = context.kept[0], &output = context.kept[1], &kept = context.kept[2];
    auto &gates = context.kept[3], &hidden = context.kept[4];
    if (!gates) {
      gates = Tensor(linear_output(input.shape(), input_weight_.value.shape()), DataType::f32);
      hidden = Tensor(gates.shape(), DataType::f32);
      pass.kernels.recurrent_backward(recurrence_, hidden_weight_.value, output, kept, gradient,
                                      gates, hidden);
    }
    Tensor input_gradient;
    if (wanted.input) {
      input_gradient = Tensor(input.shape(), input.dtype());
      pass.kernels.linear_backward_input(input_weight_.value, gates, input_gradient);
    }
    if (wanted.weights) {
      pass.kernels.linear_backward_weights(input, gates, input_weight_.gradient,
                                           input_bias_.gradient);
      pass.kernels.linear_backward_weights(before(output), hidden, hidden_weight_.gradient,
                                           hidden_bias_.gradient);
      gates = hidden = Tensor();
      announce();
    }
    return input_gradient;
  }

 private:
  // Returns the hidden values before each step: zero before the first, then those of the previous
  // step.
  static Tensor before(const Tensor& output) {
    Tensor shifted(output.shape(), output.dtype());
    const auto& shape = output.shape();
    const auto row = static_cast<size_t>(shape[2] * size_of(output.dtype()));
    const auto length = static_cast<size_t>(shape[1]);
    for (size_t n = 0; n < static_cast<size_t>(shape[0]); ++n)
      std::memcpy(shifted.data() + (n * length + 1) * row, output.data() + n * length * row,
                  (length - 1) * row);
    return shifted;
  }

  const Recurrence recurrence_;
  const int64_t inputs_, width_;
  const RecurrentShape shape_;
  Parameter input_weight_, input_bias_, hidden_weight_, hidden_bias_;
};

class MatrixFactorization final : public Layer {
 public:
  MatrixFactorization(int64_t rows, int64_t columns, int64_t features)
      : rows_(make_parameter("rows", Shape{rows, features})),
        columns_(make_parameter("columns", Shape{columns, features})),
        row_biases_(make_parameter("row_biases", Shape{rows, 1})),
        column_biases_(make_parameter("column_biases", Shape{columns, 1})) {}
  std::string kind() const override {
    return fmt::format("matrix_factorization({}, {}, {})", rows_.value.shape()[0],
                       columns_.value.shape()[0], features());
  }
  void initialize(uint64_t seed) override {
    const double deviation = 1 / std::sqrt(static_cast<double>(features()));
    fill_normal(rows_, 0.3 * deviation, seed);
    fill_normal(columns_, 0.3 * deviation, seed);
  }
  std::vector<Parameter*> parameters() override {
    return {&rows_, &columns_, &row_biases_, &column_biases_};
  }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& shape = input.shape();
    if (input.dtype() != DataType::i64 || shape.rank() != 2 || shape[1] != 2)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("layer {}: {} got {}{}, expected i64[batch, 2]: a row and a column",
                              path(), kind(), to_string(input.dtype()), shape.to_string()));
    const int64_t batch = shape[0];
    const Tensor both = on_host(input), rows(Shape{batch}, DataType::i64),
                 columns(Shape{batch}, DataType::i64);
    for (int64_t n = 0; n < batch; ++n) {
      rows.as<int64_t>()[n] = both.as<int64_t>()[2 * n];
      columns.as<int64_t>()[n] = both.as<int64_t>()[2 * n + 1];
    }
    const Tensor row_of = pass.kernels.upload(rows), column_of = pass.kernels.upload(columns);
    const auto take = [&](const Tensor& indices, const Parameter& table) {
      Tensor taken = pass.kernels.make_tensor(Shape{batch, table.value.shape()[1]}, DataType::f32);
      pass.kernels.embedding_forward(indices, table.value, taken);
      return taken;
    };
    const auto row = take(row_of, rows_), column = take(column_of, columns_);
    Tensor output = pass.kernels.make_tensor(Shape{batch, 1}, DataType::f32);
    pass.kernels.row_products_forward(row, column, output);
    pass.kernels.add(take(row_of, row_biases_), output);
    pass.kernels.add(take(column_of, column_biases_), output);
    context.kept = {row_of, column_of, row, column};
    return output;
  }
  // Indices have no gradient.
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    if (!wanted.weights) return {};
    const auto &row_of = context.kept[0], &column_of = context.kept[1];
    const auto give = [&](const Tensor& indices, const Tensor& other, Parameter& table) {
      const Tensor taken = pass.kernels.make_tensor(other.shape(), DataType::f32);
      pass.kernels.row_products_backward(other, gradient, taken);
      pass.kernels.embedding_backward(indices, taken, table.gradient);
    };
    give(row_of, context.kept[3], rows_);
    give(column_of, context.kept[2], columns_);
    pass.kernels.embedding_backward(row_of, gradient, row_biases_.gradient);
    pass.kernels.embedding_backward(column_of, gradient, column_biases_.gradient);
    announce();
    return {};
  }

 private:
  int64_t features() const { return rows_.value.shape()[1]; }

  Parameter rows_, columns_, row_biases_, column_biases_;
};

}  // namespace

std::unique_ptr<Layer> lstm(int64_t inputs, int64_t width) {
  return std::make_unique<Recurrent>(Recurrence::lstm, inputs, width);
}
std::unique_ptr<Layer> gru(int64_t inputs, int64_t width) {
  return std::make_unique<Recurrent>(Recurrence::gru, inputs, width);
}
std::unique_ptr<Layer> matrix_factorization(int64_t rows, int64_t columns, int64_t features) {
  return std::make_unique<MatrixFactorization>(rows, columns, features);
}

}  // namespace tutti::nn
