// Softmax attention, the losses and the decode step on any device.
#include "tests/kernels/device_backends.hpp"

#include <c10/core/GradMode.h>

namespace hedgerow::kernels::testing {
namespace {

TEST_P(DeviceSoftmax, StaysWithinTwiceThePlainErrorInValueAndEveryGradient) {
  const auto outcome = [](const AttentionFunction& attention, const AttentionInputs& x) {
    const at::Tensor y = attention(x);
    Outcome found{y.detach(), {}};
    found.gradients = torch::autograd::grad({y}, {x.q, x.k, x.v}, {x.dy.to(y.scalar_type())});
    return found;
  };
  const auto trainable = [&](const AttentionInputs& x) {
    return softmax_attention_trainable(x.q, x.k, x.v, backend());
  };
  const auto reference = [](const AttentionInputs& x) {
    return softmax_attention_reference(x.q, x.k, x.v);
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t T : {1, 63, 64, 65, 127, 128, 200}) {
      for (const std::int64_t G : {4, 2, 1}) {
        const AttentionCase shape{.B = 2, .H = 4, .G = G, .T = T, .D = 32, .dtype = dtype};
        const AttentionInputs inputs = make_inputs(shape);
        const AttentionInputs x = on_device(shape, inputs);
        const Outcome ours = outcome(trainable, x);
        const Outcome plain = outcome(reference, inputs.as(dtype, at::kFloat));
        const Outcome exact = outcome(reference, inputs.as(at::kDouble, at::kDouble));
        expect_within_twice(ours.value.cpu(), plain.value, exact.value, shape.name() + ", y");
        EXPECT_TRUE(at::equal(softmax_attention(x.q, x.k, x.v, backend()), ours.value))
            << shape.name();
        for (std::size_t i = 0; i < 3; ++i) {
          expect_within_twice(ours.gradients[i].cpu(),
                              plain.gradients[i],
                              exact.gradients[i],
                              shape.name() + ", d" + kLeafNames[i]);
        }
      }
    }
  }
}

TEST_P(DeviceSoftmax, HasNoGradientUnlessItIsTheTrainableOne) {
  const AttentionCase shape;
  const AttentionInputs x = on_device(shape, make_inputs(shape));
  EXPECT_FALSE(softmax_attention(x.q, x.k, x.v, backend()).requires_grad());
}

TEST_P(DeviceLoss, OfTheWeightsEqualsTheReferenceInValueAndEveryGradient) {
  for (const WindowLayout layout : kLayouts) {
    for (const std::int64_t T : {1, 15, 16, 17, 40, 63, 300}) {
      for (const at::ScalarType dtype : kDtypes) {
        // Sharp teachers and students with dead features: many weights lie below the clamp.
        const bool sharp = T == 300;
        AttentionCase shape{.T = T, .dtype = dtype, .bias = T == 40, .scale = sharp ? 4.0 : 1.0};
        shape.options.window = layout;
        shape.options.window_size = 16;
        if (sharp) {
          shape.options.feature_map = FeatureMapKind::kT2R;
        }
        const AttentionInputs inputs = make_inputs(shape);
        const auto reference = [&](const AttentionInputs& x) {
          return transfer_cross_entropy_reference(
              x.q.detach(), x.k.detach(), x.parameters, shape.options);
        };
        const auto ours = [&](const AttentionInputs& x) {
          return transfer_cross_entropy(x.q, x.k, x.parameters, shape.options, backend());
        };
        const Outcome exact = differentiate(reference, inputs.as(at::kDouble, at::kDouble));
        const Outcome found = differentiate(ours, on_device(shape, inputs));
        if (backend() == Backend::kAten) {
          expect_outcome(
              shape, found, differentiate(reference, inputs.as(dtype, at::kFloat)), exact);
        } else {
          expect_entry_outcome(shape, found, plain_cross_entropy_outcome(shape, inputs), exact);
        }
      }
    }
  }
}

TEST_P(DeviceLoss, OfTheOutputsIsTheMeanSquareOfAnyLayoutAndDtype) {
  const AttentionCase shape{.T = 500};
  const AttentionInputs inputs = make_inputs(shape);
  const auto strided = [](const at::Tensor& x) {
    return x.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const at::Tensor pred = inputs.q.to(device()), truth = inputs.dy.to(device(), at::kBFloat16);
  const at::Tensor leaf = pred.to(at::kDouble).set_requires_grad(true);
  const at::Tensor exact = at::mse_loss(leaf, truth.to(at::kDouble)) * 1000;
  const at::Tensor expected = torch::autograd::grad({exact}, {leaf})[0];
  for (const at::Tensor& p : {pred, strided(pred), pred.to(at::kBFloat16)}) {
    const bool rounded = p.scalar_type() == at::kBFloat16;
    for (const at::Tensor& t : {truth, strided(truth), truth.to(at::kFloat)}) {
      const at::Tensor x = p.detach().set_requires_grad(true);
      const at::Tensor loss = transfer_mse(x, t, backend()) * 1000;
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_NEAR(loss.item<double>(),
                  exact.item<double>(),
                  (rounded ? 1e-3 : 1e-6) * exact.item<double>());
      const at::Tensor found = torch::autograd::grad({loss}, {x})[0];
      EXPECT_EQ(found.scalar_type(), p.scalar_type());
      EXPECT_LT((found - expected).abs().max().item<double>(),
                (rounded ? 1e-2 : 1e-6) * expected.abs().max().item<double>());
    }
  }
}

at::Tensor token(const at::Tensor& x, std::int64_t t) { return x.select(2, t); }

// The full forward by the reference, which decoding must continue.
at::Tensor full_forward(const AttentionInputs& x, const HybridOptions& options) {
  return hybrid_attention_reference(x.q, x.k, x.v, x.parameters, options);
}

TEST_P(DeviceDecode, ContinuesThePrefillFromAnySplitAsTheFullForward) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 2, .H = 6, .G = 2, .T = 37, .D = 24, .f = 8};
    shape.options.window = layout;
    shape.options.window_size = 8;
    const AttentionInputs inputs = make_inputs(shape), x = on_device(shape, inputs);
    const at::Tensor full = full_forward(inputs, shape.options);
    for (const std::int64_t split : {0, 1, 7, 8, 9, 15, 16, 17, 24, 30, 36}) {
      DecodeState state =
          split == 0 ? make_decode_state(2, 6, 2, 24, 16, shape.dtype, device(), shape.options)
                     : prefill_state(x.k.narrow(2, 0, split),
                                     x.v.narrow(2, 0, split),
                                     at::full({2}, split, at::kLong),
                                     x.parameters,
                                     shape.options,
                                     backend());
      for (std::int64_t t = split; t < shape.T; ++t) {
        const at::Tensor y = decode_step(token(x.q, t),
                                         token(x.k, t),
                                         token(x.v, t),
                                         state,
                                         x.parameters,
                                         shape.options,
                                         backend());
        const double error = (y.cpu() - token(full, t)).abs().max().item<double>();
        EXPECT_LE(error, 1e-5) << shape.name() << ", split at " << split << ", token " << t;
      }
      EXPECT_TRUE(at::equal(state.positions.cpu(), at::full({2}, shape.T, at::kLong)));
    }
  }
}

TEST_P(DeviceDecode, OfBfloat16StaysWithinTwiceThePlainError) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 1, .H = 4, .G = 1, .T = 70, .D = 64, .f = 32, .dtype = at::kBFloat16};
    shape.options.window = layout;
    shape.options.window_size = 16;
    const AttentionInputs inputs = make_inputs(shape);
    const AttentionInputs x = on_device(shape, inputs), exact = inputs.as(at::kDouble, at::kDouble);
    DecodeState state = prefill_state(x.k.narrow(2, 0, 33),
                                      x.v.narrow(2, 0, 33),
                                      at::full({1}, 33, at::kLong),
                                      x.parameters,
                                      shape.options,
                                      backend());
    std::vector<at::Tensor> rows;
    for (std::int64_t t = 33; t < shape.T; ++t) {
      rows.push_back(decode_step(token(x.q, t),
                                 token(x.k, t),
                                 token(x.v, t),
                                 state,
                                 x.parameters,
                                 shape.options,
                                 backend()));
    }
    const auto tail = [&](const AttentionInputs& y) {
      return full_forward(y, shape.options).narrow(2, 33, 37);
    };
    expect_within_twice(at::stack(rows, 2).cpu(), tail(inputs), tail(exact), shape.name());
  }
}

// Rows flush and evict at their own steps; the padding holds what a careless reader would trip
// over.
TEST_P(DeviceDecode, GivesARowOfARaggedBatchWhatTheFullForwardGivesItAlone) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 3, .H = 4, .G = 2, .T = 60, .D = 16, .f = 8};
    shape.options.window = layout;
    shape.options.window_size = 8;
    const AttentionInputs inputs = make_inputs(shape), x = on_device(shape, inputs);
    const at::Tensor full = full_forward(inputs, shape.options);
    const std::vector<std::int64_t> lengths = {5, 31, 17};
    at::Tensor k = x.k.narrow(2, 0, 40).clone(), v = x.v.narrow(2, 0, 40).clone();
    for (std::int64_t b = 0; b < 3; ++b) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      k[b].narrow(1, length, 40 - length).fill_(NAN);
      v[b].narrow(1, length, 40 - length).fill_(NAN);
    }
    DecodeState state =
        prefill_state(k, v, at::tensor(lengths), x.parameters, shape.options, backend());
    for (std::int64_t step = 0; step < 29; ++step) {
      const auto next = [&](const at::Tensor& values) {
        std::vector<at::Tensor> rows;
        for (std::int64_t b = 0; b < 3; ++b) {
          rows.push_back(values[b].select(1, lengths[static_cast<std::size_t>(b)] + step));
        }
        return at::stack(rows);
      };
      const at::Tensor y = decode_step(
          next(x.q), next(x.k), next(x.v), state, x.parameters, shape.options, backend());
      EXPECT_LE((y.cpu() - next(full)).abs().max().item<double>(), 1e-5)
          << shape.name() << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace hedgerow::kernels::testing
