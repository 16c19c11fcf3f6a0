// Dimension expressions that are plain names: enough for a plugin whose outputs are shaped like inputs.
//
// The interface wraps implementations (apiv::V…) that only TensorRT makes; a derived class may set its
// protected pointer, so these are made here.
#pragma once

#include <NvInferRuntime.h>

#include <memory>
#include <vector>

namespace edgekv::check {

class Expr final : public nvinfer1::IDimensionExpr {
 public:
  explicit Expr(int64_t value) : implementation_(value) { mImpl = &implementation_; }
  ~Expr() noexcept override = default;

 private:
  struct Implementation final : nvinfer1::apiv::VDimensionExpr {
    explicit Implementation(int64_t number) : value(number) {}
    bool isConstant() const override { return true; }
    int64_t getConstantValue() const override { return value; }
    bool isSizeTensor() const override { return false; }
    int64_t value;
  };
  Implementation implementation_;
};

class ExprBuilder final : public nvinfer1::IExprBuilder {
 public:
  ExprBuilder() : implementation_(*this) { mImpl = &implementation_; }
  ~ExprBuilder() noexcept override = default;

  const Expr* make(int64_t value) {
    exprs_.push_back(std::make_unique<Expr>(value));
    return exprs_.back().get();
  }

 private:
  struct Implementation final : nvinfer1::apiv::VExprBuilder {
    explicit Implementation(ExprBuilder& owner) : builder(owner) {}
    const nvinfer1::IDimensionExpr* constant(int64_t value) override { return builder.make(value); }
    const nvinfer1::IDimensionExpr* operation(nvinfer1::DimensionOperation,
                                              const nvinfer1::IDimensionExpr&,
                                              const nvinfer1::IDimensionExpr&) override {
      return nullptr;
    }
    const nvinfer1::IDimensionExpr* declareSizeTensor(int32_t, const nvinfer1::IDimensionExpr&,
                                                      const nvinfer1::IDimensionExpr&) override {
      return nullptr;
    }
    ExprBuilder& builder;
  };
  Implementation implementation_;
  std::vector<std::unique_ptr<Expr>> exprs_;
};

}  // namespace edgekv::check
