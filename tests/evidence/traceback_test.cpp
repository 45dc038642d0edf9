#include "src/evidence/traceback.h"

#include <doctest/doctest.h>

using namespace lowtide;

TEST_CASE("Python's form: frames, code, class, message, phase") {
  const auto tracebacks = read_tracebacks({
      "Traceback (most recent call last):",
      "File \"train.py\", line 40, in <module>",
      "main()",
      "File \"/opt/lib/python3.11/site-packages/torch/autograd/__init__.py\", line 347, in "
      "backward",
      "_engine_run_backward(",
      "^^^^^^^^^^^^^^^^^^^^^",
      "torch.OutOfMemoryError: CUDA out of memory.",
  });
  REQUIRE(tracebacks.size() == 1);
  const Traceback& traceback = tracebacks[0];
  REQUIRE(traceback.frames.size() == 2);
  CHECK(traceback.frames[0].file == "train.py");
  CHECK(traceback.frames[0].line == 40);
  CHECK(traceback.frames[0].code == "main()");
  CHECK(traceback.frames[1].function == "backward");
  CHECK(traceback.exception == "torch.OutOfMemoryError");
  CHECK(traceback.message == "CUDA out of memory.");
  CHECK(traceback.exception_line == 6);
  CHECK(traceback.phase == Phase::kBackward);
  CHECK(user_frame(traceback)->file == "train.py");
}

TEST_CASE("a chain is told by its sentences") {
  const auto tracebacks = read_tracebacks({
      "Traceback (most recent call last):",
      "File \"a.py\", line 1, in step",
      "y = model(x)",
      "RuntimeError: CUDA out of memory.",
      "",
      "During handling of the above exception, another exception occurred:",
      "",
      "Traceback (most recent call last):",
      "File \"a.py\", line 5, in step",
      "y = model(x[:1])",
      "RuntimeError: CUDA out of memory.",
  });
  REQUIRE(tracebacks.size() == 2);
  CHECK(tracebacks[0].link == ChainLink::kNone);
  CHECK(tracebacks[1].link == ChainLink::kDuringHandling);
}

TEST_CASE("notebooks, rich and pytest print frames of their own") {
  const auto notebook = read_tracebacks({
      "RuntimeError                              Traceback (most recent call last)",
      "<ipython-input-5-a2a7f14f2b5a> in <module>()",
      "26         optimizer.zero_grad()",
      "---> 27         output = model(images)",
      "~/env/lib/python3.6/site-packages/torch/nn/modules/module.py in __call__(self, *input)",
      "490         else:",
      "--> 491             result = self.forward(*input, **kwargs)",
      "RuntimeError: CUDA error: out of memory",
  });
  REQUIRE(notebook.size() == 1);
  REQUIRE(notebook[0].frames.size() == 2);
  CHECK(notebook[0].frames[0].code == "output = model(images)");
  CHECK(notebook[0].frames[1].function == "__call__");
  CHECK(notebook[0].phase == Phase::kForward);

  const auto rich = read_tracebacks({
      "C:\\kohya\\venv\\lib\\site-packages\\torch\\optim\\adamw.py:566 in _multi_tensor_adamw",
      "563             else:",
      "> 566                 denom = torch._foreach_add(exp_avg_sq_sqrt, eps)",
      "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
  });
  REQUIRE(rich.size() == 1);
  CHECK(rich[0].frames[0].line == 566);
  CHECK(rich[0].frames[0].function == "_multi_tensor_adamw");
  CHECK(rich[0].phase == Phase::kOptimizerStep);

  const auto pytest = read_tracebacks({
      "tests/test_trainer.py:852: in test_train",
      "trainer.train()",
      "src/model.py:17: in forward",
      "x = self.conv(x)",
      "torch.OutOfMemoryError: CUDA out of memory.",
  });
  REQUIRE(pytest.size() == 1);
  CHECK(pytest[0].frames.size() == 2);
  CHECK(pytest[0].phase == Phase::kForward);
  CHECK_FALSE(pytest[0].in_evaluation);
}

TEST_CASE("a frame that a terminal broke is put together") {
  const auto tracebacks = read_tracebacks({
      "Traceback (most recent call last):",
      "File \"/home/user/a/very/long/path/to/the/proj",
      "ect/train.py\", line 12, in main",
      "loss.backward()",
      "RuntimeError: x",
  });
  REQUIRE(tracebacks.size() == 1);
  CHECK(tracebacks[0].frames[0].file == "/home/user/a/very/long/path/to/the/project/train.py");
  CHECK(tracebacks[0].frames[0].line == 12);
}

TEST_CASE("the innermost frame that tells decides the phase") {
  const auto phase_of = [](std::vector<std::string> lines) {
    lines.insert(lines.begin(), "Traceback (most recent call last):");
    lines.push_back("RuntimeError: x");
    const auto tracebacks = read_tracebacks(lines);
    REQUIRE(tracebacks.size() == 1);
    return tracebacks[0];
  };
  // A forward pass inside an optimizer's closure is a forward pass.
  CHECK(phase_of({"File \"/lib/python3.10/site-packages/torch/optim/adamw.py\", line 120, in step",
                  "loss = closure()", "File \"model.py\", line 9, in forward", "x = self.conv(x)"})
            .phase == Phase::kForward);
  CHECK(phase_of({"File \"a.py\", line 1, in resume", "ckpt = torch.load(path)"}).phase ==
        Phase::kLoading);
  CHECK(phase_of({"File \"/x/torch/optim/optimizer.py\", line 900, in load_state_dict",
                  "value = _cast(param, value)",
                  "File \"/x/torch/optim/optimizer.py\", line 880, in "
                  "_process_value_according_to_param_policy",
                  "return value.to(dtype=torch.float32, device=param.device)"})
            .phase == Phase::kLoading);
  CHECK(phase_of({"File \"a.py\", line 1, in f", "loss = F.cross_entropy(logits, y)"}).phase ==
        Phase::kLoss);
  CHECK(phase_of({"File \"a.py\", line 1, in main", "model.cuda()"}).phase == Phase::kPlacement);
  CHECK(phase_of({"File \"/x/torch/cuda/graphs.py\", line 186, in __exit__", "self.capture_end()"})
            .in_capture);
  const Traceback evaluation =
      phase_of({"File \"a.py\", line 1, in validate", "y = model(x)",
                "File \"m.py\", line 2, in forward", "return self.net(x)"});
  CHECK(evaluation.in_evaluation);
  CHECK_FALSE(evaluation.grad_disabled);
  CHECK(phase_of({"File \"/x/torch/utils/_contextlib.py\", line 116, in decorate_context",
                  "return func(*args, **kwargs)", "File \"a.py\", line 1, in validate",
                  "y = model(x)"})
            .grad_disabled);
  CHECK_FALSE(phase_of({"File \"a.py\", line 1, in load_latest", "y = model(x)"}).in_evaluation);
}

TEST_CASE("lines that look like code or logs are no frames") {
  CHECK(read_tracebacks({"src/a.py:12: error: bad type", "warning: x", "File not found"}).empty());
  CHECK(read_tracebacks({}).empty());
  CHECK(read_tracebacks({"Traceback (most recent call last):"}).empty());
}
