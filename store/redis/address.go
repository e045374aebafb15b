package redis

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// ParseAddresses reads addresses of the forms host:port, redis://, rediss://
// and unix:// into a Config. Several addresses are nodes of one Cluster, or
// Sentinels of one deployment: except for host and port they have to be equal.
// Its errors say which address is wrong and not what it is: it may have a
// password, in a place where nobody looks for one.
//
// A unix socket has no host that a Cluster's node or a Sentinel could name, so
// it comes alone.
func ParseAddresses(addresses ...string) (Config, error) {
	var config Config
	for i, address := range addresses {
		one, err := parseAddress(address)
		if err != nil {
			return Config{}, fmt.Errorf("address %d %w", i+1, err)
		}
		if i == 0 {
			config = one
			continue
		}
		switch {
		case config.Network != one.Network:
			return Config{}, errors.New("addresses: a unix socket and another address do not go together")
		case config.Network == "unix":
			return Config{}, errors.New("addresses: more than one unix socket is given")
		case (config.TLS == nil) != (one.TLS == nil):
			return Config{}, errors.New("addresses: some are rediss:// and some are not")
		case config.Username != one.Username || config.Password != one.Password:
			return Config{}, errors.New("addresses: they have different users or passwords")
		case config.DB != one.DB:
			return Config{}, errors.New("addresses: they have different databases")
		}
		config.Addresses = append(config.Addresses, one.Addresses...)
	}
	return config, nil
}

// parseAddress reads one address. Its error goes on after "address 1".
func parseAddress(address string) (Config, error) {
	if !strings.Contains(address, "://") {
		// A host with a user would be looked up as it is, and be in the error.
		if !isHostPort(address) || strings.Contains(address, "@") {
			return Config{}, errors.New("is not host:port, redis://, rediss:// or unix://")
		}
		return Config{Network: "tcp", Addresses: []string{address}}, nil
	}
	options, err := goredis.ParseURL(address)
	if err != nil {
		// ParseURL quotes the URL, and with it the password.
		return Config{}, errors.New("is not a valid redis://, rediss:// or unix:// URL")
	}
	// A unix socket has no other place for its database; what else go-redis
	// would read from a query is not taken from there.
	u, err := url.Parse(address)
	if err != nil {
		return Config{}, errors.New("is not a valid URL")
	}
	if options.Network == "tcp" && !isHostPort(options.Addr) {
		return Config{}, errors.New("has a port that is none: it is between 1 and 65535")
	}
	if options.DB < 0 {
		return Config{}, errors.New("has a negative database")
	}
	for name := range u.Query() {
		if name != "db" || u.Scheme != "unix" {
			return Config{}, fmt.Errorf("has the query parameter %q: options of the connection are set in the store's block", name)
		}
	}
	config := Config{
		Network:   options.Network,
		Addresses: []string{options.Addr},
		Username:  options.Username,
		Password:  options.Password,
		DB:        options.DB,
		TLS:       options.TLSConfig,
	}
	if config.TLS != nil {
		// Each connection is checked against the host that it goes to, which need
		// not be this one: a Cluster has many.
		config.TLS.ServerName = ""
	}
	return config, nil
}

// isHostPort reports whether an address can be dialed, whatever its host is.
func isHostPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
