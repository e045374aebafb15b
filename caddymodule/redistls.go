package caddymodule

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/caddyserver/caddy/v2"
)

// RedisTLS says how to speak TLS with Redis: whom to trust, and who we are. The
// files are read when the configuration is loaded.
type RedisTLS struct {
	// Files with the certificates, in PEM, of the authorities that the server's
	// certificate is checked against. Placeholders are expanded. Default: the
	// system's authorities.
	CA []string `json:"ca,omitempty"`

	// The file with the certificate, in PEM, that is shown to the server.
	// Placeholders are expanded. Default: none.
	ClientCertificateFile string `json:"client_certificate_file,omitempty"`

	// The file with its key. Placeholders are expanded.
	ClientCertificateKeyFile string `json:"client_certificate_key_file,omitempty"`

	// The name that the server's certificate has to have. Placeholders are
	// expanded. Default: the host of the address that the connection goes to.
	ServerName string `json:"server_name,omitempty"`
}

// configure returns the configuration, and a digest of the files, which may
// change under the same names.
func (t *RedisTLS) configure(repl *caddy.Replacer) (config *tls.Config, digest string, err error) {
	config = &tls.Config{MinVersion: tls.VersionTLS12}
	sum := sha256.New()
	read := func(option, name string) ([]byte, error) {
		path, err := expand(repl, option, name)
		if err != nil {
			return nil, err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", option, err)
		}
		part := sha256.Sum256(data)
		sum.Write(part[:])
		return data, nil
	}

	for i, name := range t.CA {
		if i == 0 {
			config.RootCAs = x509.NewCertPool()
		}
		data, err := read("ca", name)
		if err != nil {
			return nil, "", err
		}
		if !config.RootCAs.AppendCertsFromPEM(data) {
			return nil, "", fmt.Errorf("ca: %s has no certificate in PEM", name)
		}
	}
	if (t.ClientCertificateFile == "") != (t.ClientCertificateKeyFile == "") {
		return nil, "", errors.New("client_auth: a certificate needs its key, and a key its certificate")
	}
	if t.ClientCertificateFile != "" {
		certificate, err := read("client_auth", t.ClientCertificateFile)
		if err != nil {
			return nil, "", err
		}
		key, err := read("client_auth", t.ClientCertificateKeyFile)
		if err != nil {
			return nil, "", err
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, "", fmt.Errorf("client_auth: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if t.ServerName != "" {
		if config.ServerName, err = expand(repl, "server_name", t.ServerName); err != nil {
			return nil, "", err
		}
	}
	sum.Write([]byte(config.ServerName))
	return config, hex.EncodeToString(sum.Sum(nil)), nil
}
