# Run `make` to see what there is.
GO       ?= go
TOOLS    := bin/tools
CHAOS    ?= 100
FUZZTIME ?= 10s
TESTFLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help build fmt fmt-check vet lint lint-selftest test race integration chaos demo fuzz bench tools ci clean

help: ## explain every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/reprieve and bin/trainer, static
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./functions/reprieve ./examples/trainer

fmt: ## format everything
	$(GO) fmt ./... && cd test && $(GO) fmt ./...

fmt-check: ## fail if something is not formatted
	@unformatted=$$(gofmt -l $$(find . -name '*.go' -not -path './bin/*')); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi

vet: ## go vet, in both modules
	$(GO) vet ./... && cd test && $(GO) vet -tags integration ./...

lint: $(TOOLS)/golangci-lint ## golangci-lint, import rules included
	$(TOOLS)/golangci-lint run ./...
	cd test && ../$(TOOLS)/golangci-lint run --build-tags integration ./...

lint-selftest: $(TOOLS)/golangci-lint ## prove that the import rules and the ban on clocks bite
	.ci/lint-selftest

test: ## everything that needs only Go
	$(GO) test $(TESTFLAGS) ./...
	cd test && $(GO) test $(TESTFLAGS) ./...

race: ## the same under the race detector, which needs a C compiler
	$(GO) test -race $(TESTFLAGS) ./...
	cd test && $(GO) test -race $(TESTFLAGS) $$($(GO) list ./... | grep -v '/model$$')

integration: tools ## with real servers and mounts: S3 (versitygw), EC2 metadata mock, a full disk; as root
	$(GO) test -tags integration -count=1 $(TESTFLAGS) ./infra/blob/file ./infra/transfer -run FullDisk
	cd test && VERSITYGW=$(CURDIR)/$(TOOLS)/versitygw EC2_METADATA_MOCK=$(CURDIR)/$(TOOLS)/ec2-metadata-mock \
		$(GO) test -tags integration -count=1 $(TESTFLAGS) ./conformance ./integration

chaos: ## kill -9 of everything at random, CHAOS times (100)
	cd test && $(GO) test -count=1 -timeout 60m $(TESTFLAGS) ./chaos -chaos.runs=$(CHAOS)

demo: build ## watch a training job being preempted and surviving
	bin/reprieve demo

fuzz: ## every fuzz target for FUZZTIME (10s)
	@for dir in $$(grep -rl --include='*_test.go' 'func Fuzz' . | xargs -n1 dirname | sort -u); do \
		for target in $$(grep -ho 'func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -c6-); do \
			echo "$$dir $$target"; (cd $$dir && $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) .) || exit 1; \
		done; done

bench: build ## latency of a notice, idle cost, throughput
	cd test && $(GO) test -run '^$$' -bench . -benchtime 1x ./bench

tools: $(TOOLS)/golangci-lint $(TOOLS)/versitygw $(TOOLS)/ec2-metadata-mock ## build the linter and the test servers (cached)

$(TOOLS)/golangci-lint $(TOOLS)/versitygw $(TOOLS)/ec2-metadata-mock &: test/tools/go.mod
	@echo "building the linter and the test servers; several minutes the first time"
	cd test/tools && CGO_ENABLED=0 GOBIN=$(CURDIR)/$(TOOLS) $(GO) install tool
	@touch $(TOOLS)/*

ci: ## what CI runs; fails if a test that must run did not
	$(MAKE) fmt-check vet lint lint-selftest
	.ci/required $(MAKE) --no-print-directory test race integration chaos TESTFLAGS=-json
	$(MAKE) demo

clean: ## remove bin/
	rm -rf bin
