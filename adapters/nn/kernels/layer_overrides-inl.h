// Declares the functions of LayerKernels that each device implements by itself. The body of such a
// class includes this file, so it has no include guard.

void fill_zero(const TensorView& tensor) override;

void linear_forward(const ConstTensorView& input, const ConstTensorView& weight,
                    const ConstTensorView& bias, const TensorView& output) override;
void linear_backward_input(const ConstTensorView& weight, const ConstTensorView& output_gradient,
                           const TensorView& input_gradient) override;
void linear_backward_weights(const ConstTensorView& input, const ConstTensorView& output_gradient,
                             const TensorView& weight_gradient,
                             const TensorView& bias_gradient) override;
void convolution_forward(const ConvolutionOptions& options, const ConstTensorView& input,
                         const ConstTensorView& weight, const ConstTensorView& bias,
                         const TensorView& output) override;
void convolution_backward_input(const ConvolutionOptions& options, const ConstTensorView& weight,
                                const ConstTensorView& output_gradient,
                                const TensorView& input_gradient) override;
void convolution_backward_weights(const ConvolutionOptions& options, const ConstTensorView& input,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& weight_gradient,
                                  const TensorView& bias_gradient) override;
int64_t pooling_workspace_bytes(const PoolingOptions& options, const Shape& input) override;
void pooling_forward(const PoolingOptions& options, const ConstTensorView& input,
                     const TensorView& output, const TensorView& workspace) override;
void pooling_backward(const PoolingOptions& options, const ConstTensorView& output_gradient,
                      const ConstTensorView& workspace, const TensorView& input_gradient) override;
void global_average_forward(const ConstTensorView& input, const TensorView& output) override;
void global_average_backward(const ConstTensorView& output_gradient,
                             const TensorView& input_gradient) override;
void activation_forward(Activation activation, const ConstTensorView& input,
                        const TensorView& output) override;
void activation_backward(Activation activation, const ConstTensorView& kept,
                         const ConstTensorView& output_gradient,
                         const TensorView& input_gradient) override;
void softmax_cross_entropy_forward(const ConstTensorView& logits, const ConstTensorView& labels,
                                   const TensorView& log_probabilities,
                                   const TensorView& losses) override;
void softmax_cross_entropy_backward(const ConstTensorView& log_probabilities,
                                    const ConstTensorView& labels, float scale,
                                    const TensorView& logit_gradient) override;
void negative_log_likelihood_forward(const ConstTensorView& input, const ConstTensorView& labels,
                                     const TensorView& losses) override;
void negative_log_likelihood_backward(const ConstTensorView& labels, float scale,
                                      const TensorView& input_gradient) override;
void squared_error_forward(const ConstTensorView& input, const ConstTensorView& target,
                           const TensorView& losses) override;
void squared_error_backward(const ConstTensorView& input, const ConstTensorView& target,
                            float scale, const TensorView& input_gradient) override;
void log_softmax_forward(const ConstTensorView& input, const TensorView& output) override;
void log_softmax_backward(const ConstTensorView& output, const ConstTensorView& output_gradient,
                          const TensorView& input_gradient) override;
void batch_norm_moments(const ConstTensorView& input, const TensorView& moments) override;
void batch_norm_statistics(const ConstTensorView& moments, double epsilon, double momentum,
                           const TensorView& mean, const TensorView& inverse_deviation,
                           const TensorView& running_mean,
                           const TensorView& running_variance) override;
void batch_norm_running_statistics(const ConstTensorView& running_mean,
                                   const ConstTensorView& running_variance, double epsilon,
                                   const TensorView& mean,
                                   const TensorView& inverse_deviation) override;
void batch_norm_forward(const ConstTensorView& input, const ConstTensorView& mean,
                        const ConstTensorView& inverse_deviation, const ConstTensorView& weight,
                        const ConstTensorView& bias, const TensorView& output) override;
void batch_norm_backward_moments(const ConstTensorView& input, const ConstTensorView& mean,
                                 const ConstTensorView& inverse_deviation,
                                 const ConstTensorView& output_gradient,
                                 const TensorView& moments) override;
void batch_norm_backward_input(const ConstTensorView& input, const ConstTensorView& mean,
                               const ConstTensorView& inverse_deviation,
                               const ConstTensorView& weight,
                               const ConstTensorView& output_gradient,
                               const ConstTensorView& moments,
                               const TensorView& input_gradient) override;
void batch_norm_backward_weights(const ConstTensorView& moments, const TensorView& weight_gradient,
                                 const TensorView& bias_gradient) override;
void layer_norm_forward(double epsilon, const ConstTensorView& input, const ConstTensorView& weight,
                        const ConstTensorView& bias, const TensorView& output,
                        const TensorView& statistics) override;
void layer_norm_backward_input(const ConstTensorView& input, const ConstTensorView& statistics,
                               const ConstTensorView& weight,
                               const ConstTensorView& output_gradient,
                               const TensorView& input_gradient) override;
void layer_norm_backward_weights(const ConstTensorView& input, const ConstTensorView& statistics,
                                 const ConstTensorView& output_gradient,
                                 const TensorView& weight_gradient,
                                 const TensorView& bias_gradient) override;
void embedding_forward(const ConstTensorView& indices, const ConstTensorView& table,
                       const TensorView& output) override;
void embedding_backward(const ConstTensorView& indices, const ConstTensorView& output_gradient,
                        const TensorView& table_gradient) override;
void attention_forward(const AttentionOptions& options, const ConstTensorView& packed,
                       const TensorView& output, const TensorView& log_sums) override;
void attention_backward(const AttentionOptions& options, const ConstTensorView& packed,
                        const ConstTensorView& output, const ConstTensorView& log_sums,
                        const ConstTensorView& output_gradient,
                        const TensorView& packed_gradient) override;
void recurrent_forward(Recurrence recurrence, const ConstTensorView& gates,
                       const ConstTensorView& weight, const ConstTensorView& bias,
                       const TensorView& output, const TensorView& kept) override;
void recurrent_backward(Recurrence recurrence, const ConstTensorView& weight,
                        const ConstTensorView& output, const ConstTensorView& kept,
                        const ConstTensorView& output_gradient, const TensorView& gates_gradient,
                        const TensorView& hidden_gradient) override;
void row_products_forward(const ConstTensorView& a, const ConstTensorView& b,
                          const TensorView& output) override;
void row_products_backward(const ConstTensorView& b, const ConstTensorView& output_gradient,
                           const TensorView& a_gradient) override;
void dropout(const RandomKey& key, uint64_t first, double probability, const ConstTensorView& input,
             const TensorView& output) override;
void cast_to(const ConstTensorView& input, const TensorView& output) override;
void add(const ConstTensorView& source, const TensorView& target) override;
